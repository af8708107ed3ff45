"""trainkit: exact losses, optimizers, calibration and quantization for PyTorch and Lightning training loops.

The package imports nothing by itself; take what you need from its families, for example
``from trainkit.losses import FocalLoss``. ``trainkit list`` prints every part.
"""

__version__ = "0.1.0"
