/* ir_texts.h - valid graph texts that together use every op, every dtype and every form of the grammar; shared by the ir tests.
 */
#ifndef TESTS_IR_TEXTS_H
#define TESTS_IR_TEXTS_H

static const char *const ir_texts[] = {
    "graph @mlp(x f32[8,784], w f32[784,128], b f32[128]) {\n"
    "  %1 = dot x, w            f32[8,128] ; last axis of x, first of w\n"
    "  %2 = reshape b f32[1,128]\n"
    "  %3 = expand %2 f32[8,128]\n"
    "  %4 = add %1, %3\n"
    "  %5 = max %4, 0.0         f32[8,128]\n"
    "  return %5\n"
    "}\n",
    "graph @unary(x f32[3], b bool[3], i i32[3]) {\n"
    "%1 = neg i\n%2 = abs %1\n%3 = sign %2\n%4 = floor x\n%5 = ceil %4\n%6 = round %5\n%7 = sqrt %6\n%8 = rsqrt %7\n%9 = exp "
    "%8\n"
    "%10 = log %9\n%11 = log1p %10\n%12 = expm1 %11\n%13 = sin %12\n%14 = cos %13\n%15 = tan %14\n%16 = asin %15\n%17 = acos "
    "%16\n"
    "%18 = atan %17\n%19 = sinh %18\n%20 = cosh %19\n%21 = tanh %20\n%22 = asinh %21\n%23 = acosh %22\n%24 = atanh %23\n%25 = "
    "erf %24\n"
    "%31 = erfc %25\n%32 = exp2 %31\n%33 = log2 %32\n%34 = trunc %33\n"
    "%28 = relu %34\n%29 = sigmoid %28\n%30 = softplus %29\n"
    "%26 = not b\n%27 = stop_gradient %30 label=\"the end\"\n"
    "return %27 as \"y\", %26 as \"n\", %3 as \"s\"\n}",
    "graph @binary(x f64[2,3], y f64[2,3], i u8[2,3], j u8[2,3]) {\n"
    "%1 = add x, y\n%2 = sub %1, y\n%3 = mul %2, 2.5\n%4 = div 1, %3\n%5 = pow %4, y\n%6 = mod %5, -0.0\n%7 = max %6, inf\n%8 "
    "= min %7, nan\n"
    "%9 = lt %8, 0.1\n%10 = le x, y\n%11 = gt x, y\n%12 = ge x, y\n%13 = eq i, 255\n%14 = ne 0, j\n%15 = and i, j\n%16 = or i, "
    "7\n%17 = xor i, j\n"
    "%18 = and %9, %10\n%19 = or %11, %12\n%20 = xor %13, true\n%21 = and %18, %19\n%22 = or %20, %14\n%23 = and %21, %22\n"
    "%28 = shift_left i, j\n%29 = shift_right %28, 3\n%30 = atan2 x, y\n%31 = hypot %30, 1\n%32 = straight_through %31, x\n"
    "%24 = select %23, x, -inf\n%25 = select %23, 1.5, 2.5 f64[2,3]\n%26 = select true, x, y\n%27 = add 1e-300, 0.1 f64[2,3]\n"
    "return %24, %25, %26, %27, %15, %16, %17, %29, %31\n}",
    "graph @casts(a f16[0,4], b bf16[], c i8[3], d i64[3]) {\n"
    "%1 = cast a f32[0,4]\n%2 = cast b f16[]\n%3 = cast c bool[3]\n%4 = cast d i32[3]\n%5 = cast %4 u8[3]\n%6 = cast %5 "
    "bf16[3]\n%7 = bitcast d f64[3]\n%8 = bitcast %4 f32[3]\n"
    "return %1, %2, %3, %6, %7, %8\n}",
    "graph @reduce(x f32[2,3,4], i i32[5]) {\n"
    "%1 = sum x axes=[0,2] f32[1,3,1]\n%2 = prod x axes=[1] f32[2,1,4]\n%3 = reduce_max x axes=[0,1,2]\n%4 = reduce_min i "
    "axes=[0] i32[1]\n"
    "%5 = argmax x axis=2 i64[2,3,1]\n%6 = argmin i axis=0 i64[1]\n%7 = sum i axes=[] i32[5]\n"
    "return %1, %2, %3, %4, %5, %6, %7\n}",
    "graph @move(x f32[2,3,4], s bool[]) {\n"
    "%1 = reshape x f32[4,6]\n%2 = permute x perm=[2,0,1] f32[4,2,3]\n%3 = reshape s bool[1,1]\n%4 = expand %3 bool[5,0]\n"
    "%5 = pad %1 before=[0,1] after=[2,0] value=-1.5 f32[6,7]\n%6 = slice %5 start=[1,0] step=[2,3] f32[3,2]\n%7 = flip x "
    "axes=[0,2]\n"
    "%8 = window %5 (axis=1 size=3 stride=2 dilation=1) (axis=0 size=2) f32[5,3,3,2]\n"
    "%9 = fold %8 (axis=1 size=3 stride=2) (axis=0 size=2) f32[6,7]\n%10 = concat %9, %5, %9 axis=0 f32[18,7]\n"
    "return %2, %4, %6, %7, %10\n}",
    "graph @dots(a f32[2,3,4], b f32[4,3,5], v i32[6]) {\n"
    "%1 = dot a, b contract=[2]x[0] batch=[1]x[1] f32[3,2,5]\n%2 = dot v, v contract=[0]x[0] i32[]\n%3 = dot v, v "
    "contract=[]x[] i32[6,6]\n"
    "%4 = dot a, b contract=[2,1]x[0,1] f32[2,5]\n%5 = dot a, a batch=[0,1]x[0,1] contract=[2]x[2] f32[2,3]\nreturn %1, %2, "
    "%3, %4, %5\n}",
    "graph @index(x f32[5,3], i i32[2,2], j i64[], u f32[2,2,3], z f32[0,3], e i32[0]) {\n"
    "%1 = gather x, i axis=0 f32[2,2,3]\n%2 = gather x, j axis=1 f32[5]\n%3 = scatter_add x, i, u axis=0 f32[5,3]\n%4 = gather "
    "z, e axis=0 f32[0,3]\n%5 = scatter_add u, i, u axis=1 batch=1 f32[2,2,3]\n"
    "%6 = scatter_set x, i, u axis=0 f32[5,3]\n%7 = scatter_mul x, i, u axis=0 f32[5,3]\n%8 = scatter_max x, i, u axis=0 "
    "f32[5,3]\n%9 = scatter_min u, i, u axis=1 batch=1 f32[2,2,3]\nreturn %1, %2, %3, %4, %5, %6, %7, %8, %9\n}",
    "graph @sources(state n i64[] = [41], state w f16[2,2] = rand(7), state m bf16[3] = 0.1, state z f32[2], state b bool[4] = "
    "[true, false,\n true, true],\n"
    "    state \"odd name\" i8[2] = x\"ff7f\", \"f32\" f32[1]) {\n"
    "%one = const 1 i64[]\n%1 = add n, %one i64[]\n%2 = iota axis=1 f64[2,3]\n%3 = random n stream=5 f32[2,3]\n%4 = const "
    "[1.5, -0.0, inf, -inf, nan, 0x7fc00001, 1e-45, 3] f32[8]\n"
    "%5 = const [] f64[0,2]\n%6 = const x\"0011aaff\" u8[4]\n%7 = const [[ f32[1]\nreturn %1\n}",
    "graph @sources(state n i64[] = [41], state w f16[2,2] = rand(7), state m bf16[3] = 0.1, state z f32[2], state b bool[4] = "
    "[true, false,\n true, true],\n"
    "    state \"odd name\" i8[2] = x\"ff7f\", \"f32\" f32[1]) {\n"
    "%one = const 1 i64[]\n%1 = add n, %one i64[]\n%2 = iota axis=1 f64[2,3]\n%3 = random n stream=5 f32[2,3]\n%4 = const "
    "[1.5, -0.0, inf, -inf, nan, 0x7fc00001, 1e-45, 3] f32[8]\n"
    "%5 = const [] f64[0,2]\n%6 = const x\"0011aaff\" u8[4]\n%7 = const rand(-3) i32[5000]\n%8 = const rand(1) bool[7]\n%9 = "
    "const 0.5 f32[100000,100000]\n"
    "%10 = exp %9\n%11 = neg \"odd name\"\n%12 = abs \"f32\"\n%13 = const [-9223372036854775808, 9223372036854775807] "
    "i64[2]\n%14 = mul %9, 3.0\n%15 = const nan f16[2]\n"
    "return %1 -> n, %3, %4, %5, %6, %7, %8 as \"eight \\\"8\\\" \\\\ \\x07\", %10, %11 -> \"odd name\", %12, %13, %14, %1 as "
    "\"n\", z -> z, %15, b, %2 as \"iota\"\n}",
    "graph @f<B 1..64, T 0..1024>(x f32[B,784], y f32[B,784], k f32[T,B]) {\n"
    "%1 = add x, y f32[B,784]\n%2 = mul %1, 0.5 f32[B,784]\n%3 = sum %2 axes=[1] f32[B,1]\n%4 = dot k, x f32[T,784]\n%5 = "
    "reshape x f32[1,B,784]\n%6 = const 2.0 f32[B,T]\n"
    "%7 = permute %6 perm=[1,0] f32[T,B]\nreturn %3, %4 as \"t\", %5, %7\n}",
    "graph @ctrl(c bool[], x f32[4], n i64[]) {\n"
    "  region @yes(%a f32[4], %b i64[]) {\n    %y = mul %a, 2.0 f32[4]\n    %one = const 1 i64[]\n    %b1 = add %b, %one\n    "
    "return %y, %b1\n  }\n"
    "  region @no(%p f32[4], %q i64[]) {\n    return %p, %q\n  }\n"
    "  %1 = if c, x, n then=@yes else=@no f32[4]\n  %2 = proj %1 index=1 i64[]\n"
    "  region @inner(%i f32[4]) {\n    %z = neg %i\n    return %z\n  }\n  region @same(%s f32[4]) {\n    return %s\n  }\n"
    "  region @cond(%ca i64[], %cx f32[4]) {\n    %lt = lt %ca, 10 bool[]\n    return %lt\n  }\n"
    "  region @body(%ba i64[], %bx f32[4]) {\n    %t = gt %ba, 5\n    %r = if %t, %bx then=@inner else=@same f32[4]\n    %n = "
    "add %ba, 1\n    return %n, %r\n  }\n"
    "  %3 = while %2, %1 cond=@cond body=@body i64[]\n  %4 = proj %3 index=1 f32[4]\n  return %3 as \"count\", %4 as "
    "\"x2\"\n}\n",
    "; nothing at all\n\ngraph @\"an empty one\"() {\n  return\n}\n; the end",
    "graph @scan(x f32[6,4], h f32[4], m i64[]) {\n  region @b(%c f32[4], %t f32[4], %w f32[4]) {\n    %1 = mul %c, %w\n"
    "    %2 = add %1, %t\n    return %2, %2\n  }\n  region @k(%c2 f32[4], %t2 f32[4], %w2 f32[4]) {\n"
    "    %3 = const true bool[]\n    return %3\n  }\n  region @b2(%c3 f32[4]) {\n    return %c3\n  }\n"
    "  %4 = scan m, h, x, h body=@b cond=@k carry=1 steps=1 length=6 reverse=1 f32[4]\n  %5 = proj %4 index=1 f32[6,4]\n"
    "  %6 = scan m, h body=@b2 carry=0 steps=0 length=3 f32[3,4]\n  return %4 as \"a\", %5 as \"b\", %6 as \"c\"\n}",
    "graph @again(x f32[2,3], n i64[]) {\n  %1 = again x, n\n  %2 = exp %1\n  %3 = exp x\n  return %2 as \"a\", %3 as \"b\"\n}",
    "graph @onlystate(state w f32[]) {\n  %1 = add w, 1.0\n  return %1 as \"w\" -> w\n}",
};
/* The one text above that is not valid (an array that does not end): kept for the mutations. */
enum { IR_TEXT_BROKEN = 8, IR_N_TEXTS = (int)(sizeof ir_texts / sizeof *ir_texts) };

#endif
