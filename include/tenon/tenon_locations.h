/* tenon_locations.h - lets error texts name the caller's file and line: each builder below marks its first argument with the
 * place of the call. Included by tenon.h; define TN_NO_LOCATIONS before including tenon.h to do without. (The elementwise
 * builders have theirs in tenon_ops.h.) */
#ifndef TENON_LOCATIONS_H
#define TENON_LOCATIONS_H

#define TN_STR_(x) #x
#define TN_STR(x) TN_STR_(x)
#define TN_HERE __FILE__ ":" TN_STR(__LINE__)

static inline tn_tensor tn_at(tn_tensor x, const char *where) {
    tn_graph_at(x.graph, where);
    return x;
}
static inline tn_graph *tn_graph_at_(tn_graph *g, const char *where) {
    tn_graph_at(g, where);
    return g;
}

/* A list of tensors: each marks its graph. */
static inline const tn_tensor *tn_list_at_(const tn_tensor *xs, int n, const char *where) {
    for (int i = 0; xs && i < n; i++) tn_graph_at(xs[i].graph, where);
    return xs;
}
static inline tn_tensor tn_concat_at_(const char *where, const tn_tensor *xs, int n, int axis) {
    return tn_concat(tn_list_at_(xs, n, where), n, axis);
}
static inline tn_tensor tn_einsum_at_(const char *where, const char *spec, const tn_tensor *xs, int n) {
    return tn_einsum(spec, tn_list_at_(xs, n, where), n);
}

#ifndef TN_BUILDING
#define tn_einsum(...) tn_einsum_at_(TN_HERE, __VA_ARGS__)
#define tn_concat(...) tn_concat_at_(TN_HERE, __VA_ARGS__)
#define tn_grad(x, ...) (tn_grad)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_input(g, ...) (tn_input)(tn_graph_at_(g, TN_HERE), __VA_ARGS__)
#define tn_state(g, ...) (tn_state)(tn_graph_at_(g, TN_HERE), __VA_ARGS__)
#define tn_param(g, ...) (tn_param)(tn_graph_at_(g, TN_HERE), __VA_ARGS__)
#define tn_const(g, ...) (tn_const)(tn_graph_at_(g, TN_HERE), __VA_ARGS__)
#define tn_full(g, ...) (tn_full)(tn_graph_at_(g, TN_HERE), __VA_ARGS__)
#define tn_iota(g, ...) (tn_iota)(tn_graph_at_(g, TN_HERE), __VA_ARGS__)
#define tn_random_uniform(x, ...) (tn_random_uniform)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_random_normal(x, ...) (tn_random_normal)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_random_bernoulli(x, ...) (tn_random_bernoulli)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_label(x, ...) (tn_label)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_output(x, ...) (tn_output)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_assign(x, ...) (tn_assign)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_cast(x, ...) (tn_cast)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_add_scalar(x, ...) (tn_add_scalar)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_sub_scalar(x, ...) (tn_sub_scalar)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_div_scalar(x, ...) (tn_div_scalar)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_pow_scalar(x, ...) (tn_pow_scalar)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_max_scalar(x, ...) (tn_max_scalar)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_min_scalar(x, ...) (tn_min_scalar)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_mul_scalar(x, ...) (tn_mul_scalar)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_clamp(x, ...) (tn_clamp)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_floor_div(x, ...) (tn_floor_div)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_fmod(x, ...) (tn_fmod)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_tril(x, ...) (tn_tril)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_triu(x, ...) (tn_triu)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_one_hot(x, ...) (tn_one_hot)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_squeeze(x, ...) (tn_squeeze)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_unsqueeze(x, ...) (tn_unsqueeze)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_slice_axis(x, ...) (tn_slice_axis)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_round_away(x) (tn_round_away)(tn_at(x, TN_HERE))
#define tn_log10(x) (tn_log10)(tn_at(x, TN_HERE))
#define tn_erfinv(x) (tn_erfinv)(tn_at(x, TN_HERE))
#define tn_lgamma(x) (tn_lgamma)(tn_at(x, TN_HERE))
#define tn_digamma(x) (tn_digamma)(tn_at(x, TN_HERE))
#define tn_bit_not(x) (tn_bit_not)(tn_at(x, TN_HERE))
#define tn_popcount(x) (tn_popcount)(tn_at(x, TN_HERE))
#define tn_clz(x) (tn_clz)(tn_at(x, TN_HERE))
#define tn_is_nan(x) (tn_is_nan)(tn_at(x, TN_HERE))
#define tn_is_inf(x) (tn_is_inf)(tn_at(x, TN_HERE))
#define tn_is_finite(x) (tn_is_finite)(tn_at(x, TN_HERE))
#define tn_graph_push(g, ...) (tn_graph_push)(tn_graph_at_(g, TN_HERE), __VA_ARGS__)
#define tn_sum(x, ...) (tn_sum)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_prod(x, ...) (tn_prod)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_reduce_max(x, ...) (tn_reduce_max)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_reduce_min(x, ...) (tn_reduce_min)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_mean(x, ...) (tn_mean)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_argmax(x, ...) (tn_argmax)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_argmin(x, ...) (tn_argmin)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_reshape(x, ...) (tn_reshape)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_permute(x, ...) (tn_permute)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_transpose(x, ...) (tn_transpose)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_expand(x, ...) (tn_expand)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_pad(x, ...) (tn_pad)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_slice(x, ...) (tn_slice)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_flip(x, ...) (tn_flip)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_window(x, ...) (tn_window)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_fold(x, ...) (tn_fold)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_dot(x, ...) (tn_dot)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_matmul(x, ...) (tn_matmul)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_gather(x, ...) (tn_gather)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_scatter(x, ...) (tn_scatter)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_scatter_add(x, ...) (tn_scatter_add)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_scatter_set(x, ...) (tn_scatter_set)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_if(x, ...) (tn_if)(tn_at(x, TN_HERE), __VA_ARGS__)
#define tn_while(g, ...) (tn_while)(tn_graph_at_(g, TN_HERE), __VA_ARGS__)
#define tn_scan(g, ...) (tn_scan)(tn_graph_at_(g, TN_HERE), __VA_ARGS__)
#define tn_function_new(g, ...) (tn_function_new)(tn_graph_at_(g, TN_HERE), __VA_ARGS__)
#define tn_checkpoint(g, ...) (tn_checkpoint)(tn_graph_at_(g, TN_HERE), __VA_ARGS__)
#define tn_call(g, ...) (tn_call)(tn_graph_at_(g, TN_HERE), __VA_ARGS__)
#define tn_op(g, ...) (tn_op)(tn_graph_at_(g, TN_HERE), __VA_ARGS__)
#endif

#endif
