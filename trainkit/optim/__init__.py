"""Optimizers: chains of transforms, each written once and run as a loop, on lists or compiled."""

from trainkit.optim.ada_belief import *
from trainkit.optim.chain import *
from trainkit.optim.la_prop import *
from trainkit.optim.lion import *
from trainkit.optim.mars import *
from trainkit.optim.mvn_grad import *
from trainkit.optim.param_groups import *
