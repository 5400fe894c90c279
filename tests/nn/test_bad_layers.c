/* test_bad_layers.c - every layer given something that is no tensor of its graph, lists that are NULL, modes that are none: the
 * graph has the error, with the place of the call, and nothing is read that is not there. */
#include "tenon/tenon.h"
#include "tenon/tenon_nn.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "support/support.h"
#include <string.h>

static tn_ctx *ctx;
static tn_graph *g;
static tn_tensor x, i, count, none, stray;

static void begin(void) {
    g = tn_graph_new(ctx, "g");
    x = tn_input(g, "x", TN_F32, TN_DIMS(2, 3)), i = tn_input(g, "i", TN_I32, TN_DIMS(2));
    count = tn_state(g, "count", TN_I64, TN_SCALAR, NULL);
    none = (tn_tensor){ NULL, 7 }, stray = (tn_tensor){ g, 100000 };
}
static void end(const char *here, const char *word) {
    const char *text = tn_ctx_error(ctx);
    if (tn_graph_status(g) != TN_ERR_INVAL)
        fail_msg("%s: %s instead of TN_ERR_INVAL", here, tn_status_name(tn_graph_status(g)));
    if (strncmp(text, here, strlen(here)) != 0) fail_msg("%s is not at the start of: %s", here, text);
    if (!strstr(text, word)) fail_msg("%s: \"%s\" is not in: %s", here, word, text);
    tn_graph_free(g);
}
#define BAD(word, ...) (begin(), (void)(__VA_ARGS__), end(TN_HERE ": ", word))
#define NOT_A_TENSOR(...) BAD("not a tensor", __VA_ARGS__)
#define LIST(...) ((const tn_tensor[]){ __VA_ARGS__ })

static void test_not_a_tensor(void **state) {
    (void)state;
    NOT_A_TENSOR(tn_nn_linear(stray, 3, "l"));
    NOT_A_TENSOR(tn_nn_linear_no_bias(stray, 3, "l"));
    NOT_A_TENSOR(tn_nn_conv1d(stray, (tn_nn_conv_opts){ .out_channels = 1 }, "c"));
    NOT_A_TENSOR(tn_nn_conv2d(stray, (tn_nn_conv_opts){ .out_channels = 1 }, "c"));
    NOT_A_TENSOR(tn_nn_conv3d(stray, (tn_nn_conv_opts){ .out_channels = 1 }, "c"));
    NOT_A_TENSOR(tn_nn_max_pool(stray, (tn_nn_pool_opts){ 0 }));
    NOT_A_TENSOR(tn_nn_avg_pool(stray, (tn_nn_pool_opts){ 0 }));
    NOT_A_TENSOR(tn_nn_embedding(stray, 3, 4, "e"));
    NOT_A_TENSOR(tn_nn_dropout(stray, 0.5, count, "d"));
    NOT_A_TENSOR(tn_nn_dropout(x, 0.5, none, "d"));
    NOT_A_TENSOR(tn_nn_layer_norm(stray, 0, "n"));
    NOT_A_TENSOR(tn_nn_rms_norm(stray, 0, "n"));
    NOT_A_TENSOR(tn_nn_group_norm(stray, 1, 0, "n"));
    NOT_A_TENSOR(tn_nn_batch_norm(stray, (tn_nn_batch_norm_opts){ 0 }, "n"));
    NOT_A_TENSOR(tn_nn_attention(stray, x, x, 0));
    NOT_A_TENSOR(tn_nn_attention(x, stray, x, 0));
    NOT_A_TENSOR(tn_nn_attention(x, x, none, 1));
    NOT_A_TENSOR(tn_nn_linear_given(stray, x, none));
    NOT_A_TENSOR(tn_nn_linear_given(x, stray, none));
    NOT_A_TENSOR(tn_nn_linear_given(x, tn_transpose(x, 0, 1), stray));
    NOT_A_TENSOR(tn_nn_spatial_dropout(stray, 0.5, count, "d"));
    NOT_A_TENSOR(tn_nn_drop_path(x, 0.5, none, "d"));
    NOT_A_TENSOR(tn_nn_alpha_dropout(x, 0.5, stray, "d"));
    NOT_A_TENSOR(tn_nn_gyro_dropout(x, 0.5, 3, 2, 1, none, "d"));
    NOT_A_TENSOR(tn_nn_instance_norm(stray, 0, "n"));
    NOT_A_TENSOR(tn_nn_local_response_norm(stray, 3, 1, 1, 1));
    NOT_A_TENSOR(tn_nn_weight_norm(stray, "n"));
    NOT_A_TENSOR(tn_nn_spectral_norm(stray, 1, "n"));
    NOT_A_TENSOR(tn_nn_cross_entropy_with(stray, i, (tn_nn_cross_entropy_opts){ 0 }));
    NOT_A_TENSOR(tn_nn_cross_entropy_with(x, none, (tn_nn_cross_entropy_opts){ 0 }));
    NOT_A_TENSOR(tn_nn_cross_entropy_with(x, i, (tn_nn_cross_entropy_opts){ .weights = stray }));
    NOT_A_TENSOR(tn_nn_bce(x, stray));
    NOT_A_TENSOR(tn_nn_smooth_l1(x, none, 1));
    NOT_A_TENSOR(tn_nn_focal(stray, x, 1, 2));
    NOT_A_TENSOR(tn_nn_focal(x, stray, 1, 2));
    NOT_A_TENSOR(tn_nn_cosine_similarity(x, none, 1));
    NOT_A_TENSOR(tn_nn_cosine_embedding(x, x, stray, 0));
    NOT_A_TENSOR(tn_nn_triplet(x, x, none, 1));
    NOT_A_TENSOR(tn_nn_dice(x, stray, 1));
    NOT_A_TENSOR(tn_nn_ctc(stray, i, i, i, 0));
    NOT_A_TENSOR(tn_nn_ctc(tn_reshape(x, TN_DIMS(1, 2, 3)), i, none, i, 0));
    NOT_A_TENSOR(tn_nn_random_exponential(stray, 1, TN_DIMS(2)));
    NOT_A_TENSOR(tn_nn_random_gumbel(stray, 1, TN_DIMS(2)));
    NOT_A_TENSOR(tn_nn_random_truncated_normal(stray, 1, TN_DIMS(2), -1, 1));
    NOT_A_TENSOR(tn_nn_random_categorical(stray, 1, 1, count, 1));
    NOT_A_TENSOR(tn_nn_random_categorical(x, 1, 0, none, 1));
    NOT_A_TENSOR(tn_nn_random_permutation(stray, 1, 3));
    NOT_A_TENSOR(tn_nn_random_gamma(stray, count, 1));
    NOT_A_TENSOR(tn_nn_random_gamma(x, none, 1));
    NOT_A_TENSOR(tn_nn_random_beta(x, stray, count, 1));
    NOT_A_TENSOR(tn_nn_random_poisson(x, stray, 1));
    NOT_A_TENSOR(tn_nn_norms(LIST(x, none), 2));
    NOT_A_TENSOR(tn_nn_rate_warmup(stray, count, 3));
    NOT_A_TENSOR(tn_nn_rate_cosine(stray, 1, 0, 0, 3));
    NOT_A_TENSOR(tn_nn_unscale(stray, (tn_tensor[]){ x }, 1, 0));
    NOT_A_TENSOR(tn_nn_rope(stray, i, 0));
    NOT_A_TENSOR(tn_nn_rope(x, none, 0));
    NOT_A_TENSOR(tn_nn_swiglu(stray, 4, "s"));
    NOT_A_TENSOR(tn_nn_lm(stray, (tn_nn_lm_opts){ 0 }));
    NOT_A_TENSOR(tn_nn_lm_cached(i, none, (tn_nn_lm_opts){ 0 }));
    NOT_A_TENSOR(tn_nn_gelu(stray));
    NOT_A_TENSOR(tn_nn_gelu_tanh(stray));
    NOT_A_TENSOR(tn_nn_silu(stray));
    NOT_A_TENSOR(tn_nn_elu(stray, 1));
    NOT_A_TENSOR(tn_nn_selu(stray));
    NOT_A_TENSOR(tn_nn_leaky_relu(stray, 0.1));
    NOT_A_TENSOR(tn_nn_relu6(stray));
    NOT_A_TENSOR(tn_nn_softplus(stray));
    NOT_A_TENSOR(tn_nn_log_sigmoid(stray));
    NOT_A_TENSOR(tn_nn_softsign(stray));
    NOT_A_TENSOR(tn_nn_mish(stray));
    NOT_A_TENSOR(tn_nn_hard_tanh(stray));
    NOT_A_TENSOR(tn_nn_hard_sigmoid(stray));
    NOT_A_TENSOR(tn_nn_hard_swish(stray));
    NOT_A_TENSOR(tn_nn_softmax(stray, 0));
    NOT_A_TENSOR(tn_nn_log_softmax(stray, 0));
    NOT_A_TENSOR(tn_nn_logsumexp(stray, 0, 1));
    NOT_A_TENSOR(tn_nn_cross_entropy(stray, i));
    NOT_A_TENSOR(tn_nn_cross_entropy(x, none));
    NOT_A_TENSOR(tn_nn_nll(stray, i));
    NOT_A_TENSOR(tn_nn_nll(x, stray));
    NOT_A_TENSOR(tn_nn_mse(x, none));
    NOT_A_TENSOR(tn_nn_l1(stray, x));
    NOT_A_TENSOR(tn_nn_huber(stray, x, 1));
    NOT_A_TENSOR(tn_nn_kl_div(x, stray));
    NOT_A_TENSOR(tn_nn_bce_with_logits(x, stray));
    NOT_A_TENSOR(tn_nn_var(stray, TN_ALL_AXES, 1, 0));
    NOT_A_TENSOR(tn_nn_std(stray, TN_ALL_AXES, 1, 0));
    NOT_A_TENSOR(tn_nn_norm(stray, TN_ALL_AXES, 0));
    NOT_A_TENSOR(tn_nn_cumsum(stray, 0));
    NOT_A_TENSOR(tn_nn_cumprod(stray, 0));
    NOT_A_TENSOR(tn_nn_stack(LIST(x, stray), 2, 0));
    NOT_A_TENSOR(tn_nn_stack(LIST(none, x), 2, 0));
    NOT_A_TENSOR(tn_nn_vstack(LIST(x, none), 2));
    NOT_A_TENSOR(tn_nn_hstack(LIST(stray, x), 2));
    NOT_A_TENSOR(tn_nn_tile(stray, (const int64_t[]){ 1, 1 }, 2));
    NOT_A_TENSOR(tn_nn_repeat(stray, 2, 0));
    NOT_A_TENSOR(tn_nn_roll(stray, 2, 0));
    NOT_A_TENSOR(tn_nn_pad(stray, 0, 1, 1, TN_NN_PAD_WRAP));
    NOT_A_TENSOR((tn_nn_sgd(stray, (tn_nn_sgd_opts){ .params = &count, .n_params = 1 }), 0));
    tn_tensor out[2];
    NOT_A_TENSOR((tn_nn_split(stray, 0, (const int64_t[]){ 1, 1 }, 2, out), 0));
    assert_int_equal(out[0].id | out[1].id, 0);
}

static void test_lists_and_modes(void **state) {
    (void)state;
    tn_tensor out[2] = { { NULL, 5 }, { NULL, 6 } };
    BAD("sizes is NULL", (tn_nn_split(x, 0, NULL, 2, out), 0));
    assert_int_equal(out[0].id | out[1].id, 0);
    BAD("out is NULL", (tn_nn_split(x, 0, (const int64_t[]){ 1, 1 }, 2, NULL), 0));
    BAD("reps is NULL", tn_nn_tile(x, NULL, 2));
    BAD("no mode 9", tn_nn_pad(x, 0, 1, 1, (tn_nn_pad_mode)9));
    BAD("needs a name", tn_nn_counter(g, NULL));
    BAD("1000 axes", tn_nn_var(x, (const int64_t[]){ 0 }, 1000, 1, 0)); /* and the list is not read */
}

static int setup(void **state) {
    (void)state;
    ctx = test_ctx();
    return !ctx;
}
static int teardown(void **state) {
    (void)state;
    tn_ctx_free(ctx);
    return 0;
}
int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_not_a_tensor), cmocka_unit_test(test_lists_and_modes) };
    return cmocka_run_group_tests(tests, setup, teardown);
}
