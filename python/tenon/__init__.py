"""Tenon: a tensor graph compiler. Functions of arrays become machine code in milliseconds, with no compiler on the machine.

    import numpy as np, tenon
    f = tenon.compile(lambda x, w: (x @ w).relu())
    y = f(np.ones((8, 16), np.float32), np.ones((16, 4), np.float32))
"""

from . import io, nn, onnx, optim
from ._core import Graph, Tensor, matmul, where
from ._control import cond, scan, while_loop
from ._dims import Dim, dim
from ._dtypes import (DType, bfloat16, bool_, dtype, float8_e4m3fn, float8_e5m2, float16, float32, float64, int8, int16, int32, int64,
                      uint8, uint16, uint32, uint64)
from ._function import Bound, Function, compile, grad, tree_map, value_and_grad
from ._functions import *  # noqa: F403
from ._lib import (BuildError, Context, DeviceError, DTypeError, FileError, InternalError, InvalidError, OutOfMemory, ParseError,
                   ShapeError, TenonError, UnsupportedError, VerifyError, default_context, devices, version)
from ._ops import *  # noqa: F403
from ._run import Profile, Program, Session, Tuning
from .io import load, save
from .nn import log_softmax, logsumexp, softmax

__version__ = version()
