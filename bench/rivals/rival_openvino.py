"""OpenVINO: latency hint, f32, tensors that share memory with numpy. Takes the models of rival_ort. Inference is asked for
through OpenVINO's C interface, because its Python wrapper costs tens of microseconds a call."""
import ctypes
import glob
import os

import numpy as np
import openvino as ov

import rival_ort

F32 = 4  # ov_element_type_e
options = {}
lib = core = None


class Shape(ctypes.Structure):
    _fields_ = [("rank", ctypes.c_int64), ("dims", ctypes.POINTER(ctypes.c_int64))]


def need(status):
    if status:
        lib.ov_get_last_err_msg.restype = ctypes.c_char_p
        raise RuntimeError(f"status {status}: {lib.ov_get_last_err_msg().decode()}")


def start(name, threads):
    global lib, core
    lib = ctypes.CDLL(glob.glob(os.path.join(os.path.dirname(ov.__file__), "libs", "libopenvino_c.so*"))[0])
    core = ctypes.c_void_p()
    need(lib.ov_core_create(ctypes.byref(core)))
    lib.ov_infer_request_infer.argtypes = [ctypes.c_void_p]
    options.update(PERFORMANCE_HINT="LATENCY", INFERENCE_NUM_THREADS=str(threads), INFERENCE_PRECISION_HINT="f32", NUM_STREAMS="1")
    return ov.__version__.split("-")[0]


def request_for(model):
    """(infer request, compiled model, model): all to be released in this order."""
    read, compiled, request = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    need(lib.ov_core_read_model_from_memory_buffer(core, model, ctypes.c_size_t(len(model)), None, ctypes.byref(read)))
    words = [w.encode() for pair in options.items() for w in pair]
    need(lib.ov_core_compile_model(core, read, b"CPU", ctypes.c_size_t(len(words)), ctypes.byref(compiled), *words))
    need(lib.ov_compiled_model_create_infer_request(compiled, ctypes.byref(request)))
    return request, compiled, read


def release(request, compiled, read):
    lib.ov_infer_request_free(request)
    lib.ov_compiled_model_free(compiled)
    lib.ov_model_free(read)


class Job:
    def __init__(self, work):
        model, self.feeds, shape, self.keep = rival_ort.build(work)
        self.handles = request_for(model)
        self.y = np.zeros(shape, np.float32)
        for name, v in [*self.feeds.items(), ("y", self.y)]:
            dims, tensor = (ctypes.c_int64 * v.ndim)(*v.shape), ctypes.c_void_p()
            need(lib.ov_tensor_create_from_host_ptr(F32, Shape(v.ndim, dims), v.ctypes.data_as(ctypes.c_void_p), ctypes.byref(tensor)))
            need(lib.ov_infer_request_set_tensor(self.handles[0], name.encode(), tensor))

    def run(self, times):
        infer, request = lib.ov_infer_request_infer, self.handles[0]
        for _ in range(times):
            infer(request)

    def result(self):
        need(lib.ov_infer_request_infer(self.handles[0]))
        return {"y": self.keep(self.y).copy()}


make = Job


class Compile:
    def __init__(self, work):
        self.work, self.model = work, rival_ort.build(work)[0]

    def run(self, times):
        for _ in range(times):
            release(*request_for(self.model))

    def result(self):
        return Job(self.work).result()
