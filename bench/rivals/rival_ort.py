"""ONNX Runtime: all optimisations, I/O binding to preallocated tensors, weights as initialisers unless they are inputs."""
import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

from run import Never

threads = 1


def start(name, n):
    global threads
    threads = n
    ort.set_default_logger_severity(3)
    return ort.__version__


class Graph:
    """An ONNX model built node by node; arrays are initialisers or, given feed=True, inputs."""

    def __init__(self):
        self.nodes, self.initialisers, self.feeds, self.inputs = [], [], {}, []

    def array(self, name, value, feed=False):
        value = np.ascontiguousarray(value)
        if feed:
            self.inputs.append(helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape))
            self.feeds[name] = value
        else:
            self.initialisers.append(numpy_helper.from_array(value, name))
        return name

    def op(self, kind, *inputs, also=(), **attributes):
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name, *also], **attributes))
        return name

    def model(self, y, shape):
        self.nodes.append(helper.make_node("Identity", [y], ["y"]) if not self.nodes else self.nodes.pop())
        self.nodes[-1].output[0] = "y"
        out = [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)]
        graph = helper.make_graph(self.nodes, "g", self.inputs, out, self.initialisers)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9).SerializeToString()


def first_output_y(file):
    """The model with its first output alone, as "y"; inputs are those without initial values."""
    model = onnx.load(file)
    old, used = model.graph.output[0].name, set()
    for node in model.graph.node:
        for names in (node.input, node.output):
            for i, name in enumerate(names):
                used.add(name)
                if name == old:
                    names[i] = "y"
    assert "y" not in used or old == "y", "another value is called y"
    del model.graph.output[1:]
    model.graph.output[0].name = "y"
    weights = {w.name for w in model.graph.initializer}
    inputs = [i for i in model.graph.input if i.name not in weights]
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    model.ir_version = max(model.ir_version, 4)
    return model.SerializeToString()


def build(work):
    """The model's bytes, its feeds, the shape of y and how to bring y into the order of the reference."""
    g, keep = Graph(), lambda y: y
    if work.kind == "model":
        return first_output_y(work.file), work.inputs, work.output.shape, keep
    if work.kind == "gemm":
        feed = not work.constant
        x = g.array("x", work.x, True)
        y = g.op("Relu", g.op("Gemm", x, g.array("w", work.w, feed), g.array("b", work.b, feed)))
        shape = (work.m, work.n)
    elif work.kind == "conv" and not work.backward:  # channels first, as it likes them
        x = g.array("x", work.x.transpose(0, 3, 1, 2), True)
        y = g.op("Conv", x, g.array("w", work.weights.transpose(3, 2, 0, 1)), g.array("b", work.b), kernel_shape=[work.kernel] * 2,
                 strides=[work.stride] * 2, pads=[work.pad] * 4, group=work.groups)
        shape = (work.n, work.out, work.oh, work.ow)
        keep = lambda y: y.transpose(0, 2, 3, 1)
    elif work.kind == "rows":
        x, shape = g.array("x", work.x, True), (work.m, work.n)
        scalar = lambda name, v: g.array(name, np.array(v, np.float32))
        if work.what == "softmax":
            y = g.op("Softmax", x, axis=-1)
        elif work.what == "layer_norm":
            ones, zeros = np.ones(work.n, np.float32), np.zeros(work.n, np.float32)
            y = g.op("LayerNormalization", x, g.array("s", ones), g.array("z", zeros), axis=-1, epsilon=1e-5)
        elif work.what == "chain_of_10":
            a = g.op("Abs", g.op("Add", g.op("Mul", x, scalar("c1", 1.25)), scalar("c2", 0.5)))
            b = g.op("Max", g.op("Sub", g.op("Mul", a, x), x), scalar("c3", -0.25))
            y = g.op("Neg", g.op("Min", g.op("Add", g.op("Mul", b, scalar("c4", 0.75)), a), scalar("c5", 2)))
        elif work.what == "transpose":
            y, shape = g.op("Transpose", x, perm=[1, 0]), (work.n, work.m)
        else:
            y = g.op("Identity", x)
    elif work.kind == "mlp":
        y, i = g.array("x", work.x, True), 0
        for layer in work.layers:
            if layer == "L":
                y, i = g.op("Gemm", y, g.array(f"w{i}", work.w[i]), g.array(f"b{i}", work.b[i])), i + 1
            else:
                y = g.op("Relu", y)
        y, shape = g.op("Softmax", y, axis=-1), work.x.shape
    elif work.kind == "lstm" and not work.train and work.layers == 1:  # its gates are in the order i o f g
        order = lambda a: np.concatenate([np.split(a, 4, -1)[i] for i in (0, 3, 1, 2)], -1)
        w_x, w_h, b = (order(a) for a in work.params[0])
        y = g.op("LSTM", g.array("x", work.x, True), g.array("w", w_x.T[None]), g.array("r", w_h.T[None]),
                 g.array("b", np.concatenate([b, np.zeros_like(b)])[None]), hidden_size=work.units)
        shape = (work.steps, 1, work.batch, work.units)
        keep = lambda y: y[:, 0]
    elif work.kind == "order":
        x, axis = g.array("x", work.x, True), np.array(1, np.int64)
        shape = (work.rows, work.k if work.what == "top_k" else work.n)
        if work.what == "cumsum":
            y = g.op("CumSum", x, g.array("axis", axis))
        else:
            y = g.op("TopK", x, g.array("k", np.array([shape[1]], np.int64)), axis=1, largest=int(work.what == "top_k"), also=["index"])
    else:
        raise Never("inference only")
    return g.model(y, shape), g.feeds, shape, keep


def session(model):
    o = ort.SessionOptions()
    o.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    o.intra_op_num_threads = threads
    o.inter_op_num_threads = 1
    o.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    return ort.InferenceSession(model, o, providers=["CPUExecutionProvider"])


class Job:
    def __init__(self, work):
        model, feeds, shape, self.keep = build(work)
        self.session = session(model)
        self.binding = self.session.io_binding()
        self.values = [ort.OrtValue.ortvalue_from_numpy(v) for v in feeds.values()]
        for name, v in zip(feeds, self.values):
            self.binding.bind_ortvalue_input(name, v)
        self.y = ort.OrtValue.ortvalue_from_numpy(np.zeros(shape, np.float32))
        self.binding.bind_ortvalue_output("y", self.y)

    def run(self, times):
        # the call below the Python wrapper's argument checks
        run, binding = self.session._sess.run_with_iobinding, self.binding._iobinding
        for _ in range(times):
            run(binding, None)

    def result(self):
        self.run(1)
        return {"y": self.keep(self.y.numpy()).copy()}


make = Job


class Compile:
    """From a serialised model to a session."""

    def __init__(self, work):
        self.work, self.model = work, build(work)[0]

    def run(self, times):
        for _ in range(times):
            session(self.model)

    def result(self):
        return Job(self.work).result()
