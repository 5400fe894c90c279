/* op_ml.c - ai.onnx.ml, what of it is tensors: linear models, scalers, encoders. Tree ensembles are in op_tree.c.
 *
 * Labels that are strings come out as their numbers among the model's strings (texts.c). */
#include "ml.h"

/* ---- attributes ---- */

const float *onnx_attr_floats(onnx_call *c, const char *name, int *out_n) {
    const onnx_attr *a = onnx_attr_find(c, name);
    *out_n = a ? a->n : 0;
    if (a && a->type != ATTR_FLOATS) onnx_refuse(c, "attribute %s is not a list of floats", name);
    return a ? (a->floats ? a->floats : ONNX_NEW(c->im->env, float, 1)) : NULL;
}
const int64_t *onnx_attr_texts(onnx_call *c, const char *name, int *out_n) {
    const onnx_attr *a = onnx_attr_find(c, name);
    *out_n = a ? a->n : 0;
    if (a && a->type != ATTR_STRINGS) onnx_refuse(c, "attribute %s is not a list of strings", name);
    if (!a) return NULL;
    int64_t *out = ONNX_NEW(c->im->env, int64_t, a->n + 1);
    for (int i = 0; i < a->n; i++)
        out[i] = onnx_text_number(c->im->env, c->im->m, (const char *)a->strings[i].at, a->strings[i].n);
    return out;
}
static tn_tensor floats_const(onnx_call *c, const float *v, tn_shape s) { return tn_const(c->g, TN_F32, s, v); }

/* The first operand as f32 (f64 stays), of rank 2. */
tn_tensor onnx_features(onnx_call *c, tn_shape *out) {
    int elem = onnx_elem(c, 0);
    tn_shape s = onnx_shape(c, 0);
    if (elem == ELEM_STRING || onnx_elem_widened(elem)) onnx_refuse(c, "%s", onnx_elem_name(elem));
    if (s.rank == 1) s = TN_DIMS(1, s.dim[0]);
    if (s.rank != 2) onnx_refuse(c, "features of rank %d", s.rank);
    if (onnx_is_dim(s.dim[1])) onnx_refuse(c, "as many features as a run gives");
    *out = s;
    return tn_reshape(tn_cast(onnx_t(c, 0), elem == ELEM_F64 ? TN_F64 : TN_F32), s);
}

/* ---- what comes after the scores ---- */

/* sqrt 2 times the inverse error function of 2x - 1, as the reference approximates it. */
static tn_tensor probit(tn_tensor x) {
    tn_tensor y = tn_add_scalar(tn_mul_scalar(x, 2), -1), one = onnx_scalar(x, 1), zero = onnx_scalar(x, 0);
    tn_tensor rest = tn_mul(tn_sub(one, y), tn_add(one, y)), log = tn_log(tn_select(tn_eq(rest, zero), one, rest));
    tn_tensor v = tn_add_scalar(tn_mul_scalar(log, 0.5), 2 / (3.14159265358979323846 * 0.147)),
              w = tn_mul_scalar(log, 1 / 0.147);
    tn_tensor root = tn_sqrt(tn_sub(tn_sqrt(tn_sub(tn_mul(v, v), w)), v));
    return tn_mul_scalar(tn_select(tn_eq(rest, zero), zero, tn_mul(tn_select(tn_lt(y, zero), onnx_scalar(x, -1), one), root)),
                         1.41421356);
}
/* A softmax in which what is 0 stays 0 (times e to the largest). */
static tn_tensor softmax_zero(tn_tensor x) {
    tn_tensor top = tn_reduce_max(x, TN_INTS(1), 1), small = tn_le(tn_abs(x), onnx_scalar(x, 0.0000001));
    tn_tensor e = tn_select(small, tn_mul(x, tn_exp(tn_neg(top))), tn_exp(tn_sub(x, top))), sum = tn_sum(e, TN_INTS(1), 1),
              zero = onnx_scalar(x, 0);
    return tn_select(tn_eq(sum, zero), onnx_scalar(x, 0.5), tn_div(e, sum));
}
tn_tensor onnx_post_transform(onnx_call *c, tn_tensor x) {
    static const char *const words[] = { "NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO", "PROBIT" };
    int what = 0;
    while (what < ONNX_COUNT(words) && !onnx_attr_is(c, "post_transform", "NONE", words[what])) what++;
    switch (what) {
    case 0:
        return x;
    case 1:
        return tn_sigmoid(x);
    case 2:
        return tn_nn_softmax(x, 1);
    case 3:
        return softmax_zero(x);
    case 4:
        return probit(x);
    default:
        onnx_refuse(c, "attribute post_transform");
    }
}

/* The labels of classes by their positions i64[N]. */
void onnx_put_labels(onnx_call *c, tn_tensor at, const int64_t *ints, int n_ints, const int64_t *texts, int n_texts) {
    const int64_t *labels = n_texts ? texts : ints;
    int n = n_texts ? n_texts : n_ints;
    if (n) at = tn_gather(onnx_ints_const(c, labels, n), at, 0);
    onnx_put(c, 0, at, n_texts ? ELEM_STRING : ELEM_I64);
}

/* ---- linear models ---- */

static tn_tensor linear(onnx_call *c, int64_t rows, tn_shape *s) {
    int n, n_intercepts;
    const float *w = onnx_attr_floats(c, "coefficients", &n), *b = onnx_attr_floats(c, "intercepts", &n_intercepts);
    tn_tensor x = onnx_features(c, s);
    if (rows < 1) rows = s->dim[1] ? n / s->dim[1] : 0;
    if (!w || rows < 1 || n != rows * s->dim[1] || (b && n_intercepts && n_intercepts != rows))
        onnx_refuse(c, "%d coefficients", n);
    tn_dtype t = tn_tensor_dtype(x);
    tn_tensor y =
        tn_dot(x, tn_cast(floats_const(c, w, TN_DIMS(rows, s->dim[1])), t), NULL, NULL, 0, &(int64_t){ 1 }, &(int64_t){ 1 }, 1);
    return b && n_intercepts ? tn_add(y, tn_cast(floats_const(c, b, TN_DIMS(rows)), t)) : y;
}
void onnx_op_linear_regressor(onnx_call *c) {
    tn_shape s;
    tn_tensor y = linear(c, onnx_attr_int(c, "targets", 1), &s);
    onnx_put(c, 0, tn_cast(onnx_post_transform(c, y), TN_F32), ELEM_F32);
}
void onnx_op_linear_classifier(onnx_call *c) {
    tn_shape s;
    int n_ints, n_texts;
    const int64_t *ints = onnx_attr_ints(c, "classlabels_ints", &n_ints),
                  *texts = onnx_attr_texts(c, "classlabels_strings", &n_texts);
    (void)onnx_attr_int(c, "multi_class", 0); /* the post-transform says it all */
    tn_tensor y = linear(c, 0, &s);
    int64_t classes = n_ints > n_texts ? n_ints : n_texts, rows = tn_tensor_shape(y).dim[1];
    if (rows == 1 && classes == 2) y = tn_concat((tn_tensor[]){ tn_neg(y), y }, 2, 1), rows = 2;
    if (rows < 2 || rows != classes) onnx_refuse(c, "%lld scores for %lld classes", (long long)rows, (long long)classes);
    y = onnx_post_transform(c, y);
    onnx_put_labels(c, tn_argmax(y, 1, 0), ints, n_ints, texts, n_texts);
    onnx_put(c, 1, tn_cast(y, TN_F32), ELEM_F32);
}

/* ---- single features ---- */

void onnx_op_normalizer(onnx_call *c) {
    tn_shape s;
    tn_tensor x = onnx_features(c, &s), size = tn_abs(x), by;
    if (onnx_attr_is(c, "norm", "MAX", "MAX"))
        onnx_refuse(c, "norm MAX: by the largest number, or the largest size? Programs disagree");
    if (onnx_attr_is(c, "norm", "MAX", "L1"))
        by = tn_sum(size, TN_INTS(1), 1);
    else if (onnx_attr_is(c, "norm", "MAX", "L2"))
        by = tn_sqrt(tn_sum(tn_mul(x, x), TN_INTS(1), 1));
    else
        onnx_refuse(c, "attribute norm");
    tn_tensor y = tn_div(x, tn_max(by, onnx_scalar(x, 1e-30)));
    onnx_put(c, 0, tn_cast(tn_reshape(y, onnx_shape(c, 0)), TN_F32), ELEM_F32);
}

/* A list of one number, or one a feature. */
static tn_tensor per_feature(onnx_call *c, const char *name, tn_shape s, double fallback) {
    int n;
    const float *v = onnx_attr_floats(c, name, &n);
    if (!v || !n) return tn_full(c->g, TN_F32, TN_SCALAR, fallback);
    if (n != 1 && (s.rank < 1 || n != s.dim[s.rank - 1])) onnx_refuse(c, "%d numbers of %s", n, name);
    return floats_const(c, v, TN_DIMS(n));
}
void onnx_op_scaler(onnx_call *c) {
    tn_shape s = onnx_shape(c, 0);
    tn_tensor x = tn_cast(onnx_t(c, 0), TN_F32);
    onnx_put(c, 0, tn_mul(tn_sub(x, per_feature(c, "offset", s, 0)), per_feature(c, "scale", s, 1)), ELEM_F32);
}
void onnx_op_binarizer(onnx_call *c) {
    tn_tensor x = onnx_t(c, 0);
    double threshold = onnx_attr_float(c, "threshold", 0);
    if (!onnx_is_float(onnx_elem(c, 0))) onnx_refuse(c, "%s", onnx_elem_name(onnx_elem(c, 0)));
    onnx_put(c, 0, tn_cast(tn_gt(x, onnx_scalar(x, threshold)), tn_tensor_dtype(x)), ELEM_NONE);
}
void onnx_op_imputer(onnx_call *c) {
    tn_shape s = onnx_shape(c, 0);
    int n = 0;
    bool ints = onnx_elem(c, 0) == ELEM_I64 || onnx_elem(c, 0) == ELEM_I32;
    tn_tensor x = onnx_t(c, 0), with, gone;
    const int64_t *whole = onnx_attr_ints(c, "imputed_value_int64s", &n);
    int64_t old = onnx_attr_int(c, "replaced_value_int64", 0);
    double old_float = onnx_attr_float(c, "replaced_value_float", 0);
    if (ints) {
        if (!n || (n != 1 && (s.rank < 1 || n != s.dim[s.rank - 1]))) onnx_refuse(c, "%d values", n);
        with = tn_cast(onnx_ints_const(c, whole, n), tn_tensor_dtype(x));
        gone = tn_eq(tn_cast(x, TN_I64), tn_const(c->g, TN_I64, TN_SCALAR, &old));
    } else {
        if (!onnx_attr_find(c, "imputed_value_floats")) onnx_refuse(c, "no values");
        with = tn_cast(per_feature(c, "imputed_value_floats", s, 0), tn_tensor_dtype(x));
        gone = old_float == old_float ? tn_eq(x, onnx_scalar(x, old_float)) : tn_ne(x, x);
    }
    onnx_put(c, 0, tn_select(gone, with, x), ELEM_NONE);
}
void onnx_op_array_feature_extractor(onnx_call *c) {
    tn_shape s = onnx_shape(c, 0);
    int64_t n = onnx_count_of(onnx_shape(c, 1));
    if (s.rank < 1 || onnx_elem(c, 1) != ELEM_I64 || n < 1) onnx_refuse(c, "its operands");
    tn_tensor y = tn_gather(onnx_t(c, 0), tn_reshape(onnx_t(c, 1), TN_DIMS(n)), s.rank - 1);
    if (s.rank == 1) s = TN_DIMS(1, n);
    s.dim[s.rank - 1] = n;
    onnx_put(c, 0, tn_reshape(y, s), ELEM_NONE);
}
void onnx_op_feature_vectorizer(onnx_call *c) {
    int n;
    const int64_t *width = onnx_attr_ints(c, "inputdimensions", &n);
    tn_tensor *xs = ONNX_NEW(c->im->env, tn_tensor, c->n_in + 1);
    if (!width || n != c->n_in) onnx_refuse(c, "attribute inputdimensions");
    for (int i = 0; i < c->n_in; i++) {
        tn_shape s = onnx_shape(c, i);
        if (s.rank == 1) s = TN_DIMS(s.dim[0], 1);
        if (s.rank != 2 || width[i] != s.dim[1]) onnx_refuse(c, "%lld features of operand %d", (long long)width[i], i);
        if (onnx_elem_widened(onnx_elem(c, i))) onnx_refuse(c, "%s", onnx_elem_name(onnx_elem(c, i)));
        xs[i] = tn_reshape(tn_cast(onnx_t(c, i), TN_F32), s);
    }
    onnx_put(c, 0, tn_concat(xs, c->n_in, 1), ELEM_F32);
}

/* ---- encoders: every key is looked at ---- */

/* [..,K]: where x is key k. */
static tn_tensor hits(onnx_call *c, tn_tensor x, tn_tensor keys, int n) {
    tn_shape s = tn_tensor_shape(x);
    if (s.rank < 0 || s.rank >= TN_MAX_RANK) onnx_refuse(c, "rank %d", s.rank);
    if (n < 1 || n > 1 << 16) onnx_refuse(c, "%d keys", n);
    s.dim[s.rank++] = 1;
    tn_tensor wide = tn_reshape(x, s), same = tn_eq(wide, keys);
    bool floats = tn_tensor_dtype(x) == TN_F32 || tn_tensor_dtype(x) == TN_F64;
    return floats ? tn_or(same, tn_and(tn_ne(wide, wide), tn_ne(keys, keys))) : same; /* NaN is a key, too */
}
void onnx_op_one_hot_encoder(onnx_call *c) {
    int n_ints, n_texts;
    const int64_t *ints = onnx_attr_ints(c, "cats_int64s", &n_ints), *texts = onnx_attr_texts(c, "cats_strings", &n_texts);
    bool is_text = onnx_elem(c, 0) == ELEM_STRING;
    if (!onnx_attr_int(c, "zeros", 1)) onnx_refuse(c, "attribute zeros: what has no category must stop the run");
    if (is_text ? !n_texts : !n_ints || onnx_elem_widened(onnx_elem(c, 0))) onnx_refuse(c, "its categories");
    tn_tensor x = tn_cast(onnx_t(c, 0), TN_I64),
              keys = is_text ? onnx_ints_const(c, texts, n_texts) : onnx_ints_const(c, ints, n_ints);
    if (onnx_is_float(onnx_elem(c, 0))) { /* only whole numbers are categories */
        tn_tensor same = tn_eq(tn_cast(x, tn_tensor_dtype(onnx_t(c, 0))), onnx_t(c, 0));
        tn_shape s = tn_tensor_shape(same);
        s.dim[s.rank++] = 1;
        onnx_put(c, 0, tn_cast(tn_and(tn_reshape(same, s), hits(c, x, keys, n_ints)), TN_F32), ELEM_F32);
        return;
    }
    onnx_put(c, 0, tn_cast(hits(c, x, keys, is_text ? n_texts : n_ints), TN_F32), ELEM_F32);
}

typedef struct code_list { /* keys or values of a LabelEncoder */
    tn_tensor t;
    int n, elem;
} code_list;
static bool tensor_list(onnx_call *c, const char *name, code_list *out) {
    const onnx_attr *a = onnx_attr_find(c, name);
    onnx_tensor t;
    if (!a || a->type != ATTR_TENSOR) return false;
    onnx_read_tensor(c->im->env, a->t, &t);
    if (t.n > 1 << 16 || onnx_elem_dtype(t.elem) == TN_N_DTYPES) onnx_refuse(c, "attribute %s", name);
    *out = (code_list){ tn_const(c->g, onnx_elem_dtype(t.elem), TN_DIMS(t.n), onnx_tensor_data(c->im->env, c->im->m, &t)),
                        (int)t.n, t.elem };
    return true;
}
static code_list read_codes(onnx_call *c, const char *kind) {
    char *of[4];
    static const char *const suffixes[] = { "floats", "int64s", "strings", "tensor" };
    code_list out = { .elem = ELEM_NONE };
    int n;
    for (int i = 0; i < 4; i++) of[i] = onnx_format(c->im->env, "%s_%s", kind, suffixes[i]);
    if (tensor_list(c, of[3], &out)) return out;
    const float *f = onnx_attr_floats(c, of[0], &n);
    if (n) return (code_list){ floats_const(c, f, TN_DIMS(n)), n, ELEM_F32 };
    const int64_t *v = onnx_attr_ints(c, of[1], &n);
    if (n) return (code_list){ onnx_ints_const(c, v, n), n, ELEM_I64 };
    v = onnx_attr_texts(c, of[2], &n);
    if (n) return (code_list){ onnx_ints_const(c, v, n), n, ELEM_STRING };
    onnx_refuse(c, "no %s", kind);
}
static tn_tensor default_code(onnx_call *c, const code_list *values) {
    code_list one;
    const onnx_attr *text = onnx_attr_find(c, "default_string");
    int64_t whole = onnx_attr_int(c, "default_int64", -1);
    double number = onnx_attr_float(c, "default_float", -0.0);
    if (tensor_list(c, "default_tensor", &one)) {
        if (one.n != 1 || one.elem != values->elem) onnx_refuse(c, "attribute default_tensor");
        return tn_reshape(one.t, TN_SCALAR);
    }
    if (values->elem == ELEM_STRING) {
        static const char unused[] = "_Unused";
        bool given = text && text->type == ATTR_STRING;
        whole = onnx_text_number(c->im->env, c->im->m, given ? (const char *)text->s.at : unused,
                                 given ? text->s.n : sizeof unused - 1);
        return tn_const(c->g, TN_I64, TN_SCALAR, &whole);
    }
    if (values->elem == ELEM_I64) return tn_const(c->g, TN_I64, TN_SCALAR, &whole);
    return tn_cast(tn_full(c->g, TN_F32, TN_SCALAR, number), tn_tensor_dtype(values->t));
}
void onnx_op_label_encoder(onnx_call *c) {
    code_list keys = read_codes(c, "keys"), values = read_codes(c, "values");
    if (keys.n != values.n || keys.elem != onnx_elem(c, 0))
        onnx_refuse(c, "%d keys of %s, %d values", keys.n, onnx_elem_name(keys.elem), values.n);
    tn_tensor hit = hits(c, onnx_t(c, 0), keys.t, keys.n);
    int last = tn_tensor_shape(hit).rank - 1;
    tn_tensor at = tn_argmax(tn_cast(hit, TN_I32), last, 0),
              found = tn_cast(tn_reduce_max(tn_cast(hit, TN_I32), TN_INTS(last), 0), TN_BOOL);
    onnx_put(c, 0, tn_select(found, tn_gather(values.t, at, 0), default_code(c, &values)), values.elem);
}
