"""The conformance properties of trainkit, for its own parts and for anyone's.

``trainkit check mypkg.MyLoss --kind classification`` runs them from the command line; :func:`check` and
:func:`conform` run them from a test suite.
"""

from trainkit.testing.check import *
from trainkit.testing.faults import *
from trainkit.testing.pool import *
from trainkit.testing.properties import *
from trainkit.testing.spec import *
