/* tenon_io.h - arrays in files: JSON, safetensors, GGUF, npy, CSV, and the state of a session.
 *
 * Files are untrusted: a header is checked as a whole (sizes, dtypes, shapes, overlaps, gaps, duplicate names, bool bytes)
 * before its data is read, and no file makes a function here use memory beyond a small multiple of the file's size. Files of
 * arrays are mapped, not read: see tn_io_safetensors_load. Writing is
 * atomic: the new file stands under a temporary name beside the old one, is flushed to disk, then renamed over it; a crash at
 * any moment leaves the old or the new file, complete. (A path that names a device or a pipe, such as /dev/stdout, is written
 * to directly.)
 *
 * Errors.  TN_ERR_IO what the system refused; TN_ERR_PARSE a malformed file, with its offset or line; TN_ERR_UNSUPPORTED a
 * right file that says something Tenon has no word for; TN_ERR_SHAPE, TN_ERR_DTYPE a file that does not fit the session;
 * TN_ERR_INVAL, TN_ERR_NOMEM. The text is in tn_ctx_error. On an error nothing is returned and no file, no session and
 * no graph is changed. Memory.  From the context's allocator; what a function gives out is freed as its comment says. Threads.
 * As the context and the session: one thread at a time.
 *
 * Limits: TN_IO_MAX_HEADER bytes of a safetensors header, TN_IO_MAX_TENSORS tensors and as many metadata entries,
 * TN_IO_MAX_NAME bytes of a name or metadata key, TN_MAX_RANK axes, TN_IO_MAX_NPY_HEADER bytes of an npy header,
 * TN_IO_MAX_FIELD bytes of a CSV number, TN_IO_MAX_COLUMNS CSV columns, TN_IO_MAX_CSV bytes of a CSV file. */
#ifndef TENON_IO_H
#define TENON_IO_H

#include "tenon/tenon.h"

#ifdef __cplusplus
extern "C" {
#endif

#define TN_IO_MAX_HEADER 16777216
#define TN_IO_MAX_TENSORS 65536
#define TN_IO_MAX_NAME 1024
#define TN_IO_MAX_NPY_HEADER 65536
#define TN_IO_MAX_FIELD 120
#define TN_IO_MAX_COLUMNS 65536
#define TN_IO_MAX_CSV 4294967296
#define TN_IO_MAX_JSON 67108864
#define TN_IO_MAX_DEPTH 64

/* Frees an array that a function of this header gave out. NULL is fine. */
TN_API void tn_io_free(tn_ctx *ctx, void *data);

/* ---- whole files -------------------------------------------------------------------------------------------------------- */

/* The bytes of a regular file of at most `limit` bytes (TN_ERR_IO beyond it), with a zero behind them. Free with tn_io_free. */
TN_API TN_CHECK tn_status tn_io_file_load(tn_ctx *ctx, const char *path, uint64_t limit, void **out_data, size_t *out_size);
TN_API TN_CHECK tn_status tn_io_file_save(tn_ctx *ctx, const char *path, const void *data, size_t n);
/* Files that belong together: all are written before the first takes its place, so that an error, such as a disk that is full,
 * leaves those that were there. */
typedef struct {
    const char *path;
    const void *data;
    size_t n;
} tn_io_bytes;
TN_API TN_CHECK tn_status tn_io_files_save(tn_ctx *ctx, const tn_io_bytes *files, int n);

/* ---- JSON, for reading --------------------------------------------------------------------------------------------------- */

typedef enum { TN_JSON_NULL, TN_JSON_BOOL, TN_JSON_NUMBER, TN_JSON_TEXT, TN_JSON_ARRAY, TN_JSON_OBJECT } tn_json_kind;
/* Values stand in the order of the file: what is in an array or an object begins behind it, v + 1, and the value behind v and
 * all that is in it is v + v->all. */
typedef struct tn_json {
    const char *key;  /* of a member of an object; NULL elsewhere */
    const char *text; /* of a text, decoded, with a zero behind it; NULL elsewhere */
    double number;    /* of a number; of a bool 0 or 1 */
    tn_json_kind kind;
    int32_t n;   /* bytes of a text, elements of an array, members of an object */
    int32_t all; /* values: this one and all that are in it */
} tn_json;

/* RFC 8259, strictly, up to TN_IO_MAX_JSON bytes and TN_IO_MAX_DEPTH levels; texts have no zero character. *out is the value
 * that the file is. Takes up to 20 bytes of memory a byte of the file. */
TN_API TN_CHECK tn_status tn_io_json_load(tn_ctx *ctx, const char *path, const tn_json **out);
TN_API TN_CHECK tn_status tn_io_json_parse(tn_ctx *ctx, const void *bytes, size_t n, const char *name, const tn_json **out);
TN_API void tn_io_json_free(tn_ctx *ctx, const tn_json *root); /* NULL is fine */
/* The member of an object, of several with that key the last; NULL: there is none, or v is NULL or no object. */
TN_API const tn_json *tn_io_json_find(const tn_json *v, const char *key);

/* ---- safetensors: many named arrays in one file -------------------------------------------------------------------------- */

typedef struct {
    const char *name;
    tn_dtype dtype;
    tn_shape shape;
    const void *data; /* row-major, aligned to 64 bytes when loaded */
} tn_io_tensor;

typedef struct tn_io_tensors tn_io_tensors; /* a loaded file; owns everything it gives out */

/* Maps the file: loading takes no longer for large arrays than for small ones, and an array comes from the disk when it is
 * looked at, into memory that all processes share. Until tn_io_tensors_free the file must not become shorter (the process would
 * get SIGBUS), and what is written into it may be seen; a new file renamed over it, as tn_io_safetensors_save does, changes
 * nothing. */
TN_API TN_CHECK tn_status tn_io_safetensors_load(tn_ctx *ctx, const char *path, tn_io_tensors **out_tensors);
/* The same from a file in memory, which is copied; `name` stands for the path in messages. */
TN_API TN_CHECK tn_status tn_io_safetensors_parse(tn_ctx *ctx, const void *bytes, size_t n_bytes, const char *name,
                                                  tn_io_tensors **out_tensors);
/* Names must differ, be UTF-8 and not be empty. */
TN_API TN_CHECK tn_status tn_io_safetensors_save(tn_ctx *ctx, const char *path, const tn_io_tensor *tensors, int n);

TN_API void tn_io_tensors_free(tn_io_tensors *t); /* before its context; NULL is fine */
TN_API int tn_io_tensors_count(const tn_io_tensors *t);
/* An array that does not start at a multiple of 64 bytes of the mapped file is copied when it is asked for first: NULL also
 * when there is no memory for that. */
TN_API const tn_io_tensor *tn_io_tensors_get(const tn_io_tensors *t,
                                             int i); /* in the order of the file's header; NULL out of range */
TN_API const tn_io_tensor *tn_io_tensors_find(const tn_io_tensors *t, const char *name); /* NULL when there is none */
TN_API const char *tn_io_tensors_metadata(const tn_io_tensors *t, const char *key);      /* NULL when there is none */

/* ---- GGUF: the files of llama.cpp, for reading
 * ------------------------------------------------------------------------------- */

/* Types of arrays, with GGUF's numbers. The quantised ones are blocks of 32 or 256 numbers along the last axis. */
typedef enum {
    TN_GGUF_F32 = 0,
    TN_GGUF_F16 = 1,
    TN_GGUF_Q4_0 = 2,
    TN_GGUF_Q4_1 = 3,
    TN_GGUF_Q5_0 = 6,
    TN_GGUF_Q5_1 = 7,
    TN_GGUF_Q8_0 = 8,
    TN_GGUF_Q4_K = 12,
    TN_GGUF_Q5_K = 13,
    TN_GGUF_Q6_K = 14,
    TN_GGUF_BF16 = 30
} tn_io_gguf_type;
TN_API const char *tn_io_gguf_type_name(tn_io_gguf_type type); /* "q4_k"; "?" for an unknown value */

typedef struct {
    const char *name;
    tn_io_gguf_type type;
    tn_shape shape;   /* row-major: the last axis is the first that the file names */
    const void *data; /* as the file has it, at any address */
    size_t bytes;
} tn_io_gguf_tensor;

typedef struct tn_io_gguf tn_io_gguf; /* a mapped file; owns everything it gives out */
/* Versions 2 and 3. TN_ERR_UNSUPPORTED names an array of another type. As for safetensors, the file must not become shorter. */
TN_API TN_CHECK tn_status tn_io_gguf_load(tn_ctx *ctx, const char *path, tn_io_gguf **out);
TN_API TN_CHECK tn_status tn_io_gguf_parse(tn_ctx *ctx, const void *bytes, size_t n, const char *name, tn_io_gguf **out);
TN_API void tn_io_gguf_free(tn_io_gguf *g); /* before its context; NULL is fine */
TN_API int tn_io_gguf_count(const tn_io_gguf *g);
TN_API const tn_io_gguf_tensor *tn_io_gguf_get(const tn_io_gguf *g, int i);             /* NULL out of range */
TN_API const tn_io_gguf_tensor *tn_io_gguf_find(const tn_io_gguf *g, const char *name); /* NULL when there is none */
TN_API const char *tn_io_gguf_text(const tn_io_gguf *g, const char *key);               /* metadata; NULL when it is no text */
TN_API int tn_io_gguf_number(const tn_io_gguf *g, const char *key, double *out);        /* 0 when it is no number, nor bool */
/* How many texts the metadata's array of that name has, such as the tokens of a vocabulary, each of which goes to `each` in
 * turn (NULL: nobody asks), with a length instead of a zero behind it; -1 when there is no array of texts. */
TN_API int64_t tn_io_gguf_texts(const tn_io_gguf *g, const char *key, void (*each)(void *ud, const char *text, size_t n),
                                void *ud);
/* The same of an array of numbers. */
TN_API int64_t tn_io_gguf_numbers(const tn_io_gguf *g, const char *key, void (*each)(void *ud, double number), void *ud);
/* The array's n elements as f32. */
TN_API TN_CHECK tn_status tn_io_gguf_read(tn_ctx *ctx, const tn_io_gguf_tensor *t, float *out, size_t n);
/* Quantised arrays as whole numbers: an element is number * scale + least, as tn_io_gguf_read rounds it, with a scale (and a
 * least value) for each `group` elements along the last axis. */
typedef struct {
    int group;     /* 0: the type has no groups */
    int bits;      /* 4: numbers are 0 .. 15 with least values, -8 .. 7 without them; else 8 */
    int has_least; /* 0: least values are 0, and are not written */
    int block; /* 0: scales and least values are f16 in the file. Else whole numbers, times an f16 for each `block` elements */
} tn_io_gguf_groups;
TN_API tn_io_gguf_groups tn_io_gguf_groups_of(tn_io_gguf_type type);
/* Elements from .. from + n - 1, which are whole blocks of the file (rows are). */
TN_API TN_CHECK tn_status tn_io_gguf_read_groups(tn_ctx *ctx, const tn_io_gguf_tensor *t, size_t from, size_t n,
                                                 int8_t *numbers /* [n] */, float *scales /* [n/group] */,
                                                 float *least /* [n/group] */);
/* Of the same elements, scales and least values as the file has them: the bits of f16, one for each `block` elements, and of
 * these each group's whole numbers; without blocks one for each group, and the last two arguments are not looked at. */
TN_API TN_CHECK tn_status tn_io_gguf_read_scales(tn_ctx *ctx, const tn_io_gguf_tensor *t, size_t from, size_t n,
                                                 uint16_t *scales, uint16_t *least, int8_t *whole_scales /* [n/group] */,
                                                 int8_t *whole_least /* [n/group] */);
/* n numbers of f32, f16 or bf16 as f32; data may lie at any address. */
TN_API TN_CHECK tn_status tn_io_to_f32(tn_ctx *ctx, tn_dtype dtype, const void *data, size_t n, float *out);

/* ---- the state of a session ---------------------------------------------------------------------------------------------- */

/* Every state (parameters, moments, counters) by its name, as safetensors. */
TN_API TN_CHECK tn_status tn_io_save_state(tn_ctx *ctx, tn_session *s, const char *path);
/* Every state of the session must be in the file with its dtype and shape; what else is in the file is ignored, so an inference
 * program loads the parameters out of what a training program saved. Nothing is set unless everything fits. */
TN_API TN_CHECK tn_status tn_io_load_state(tn_ctx *ctx, tn_session *s, const char *path);
/* The same before compiling: every state of the graph takes its initial value from the file. What is compiled afterwards has
 * them, also when it is printed as C (tn_program_text, stage "standalone"). The values are copied out of the mapped file: a
 * graph may outlive the file, and what others write to the file must not change it. Free the graph after compiling, and the
 * program has the only copy; where even the peak counts, compile without initial values and give them to a session with
 * tn_io_load_state, which reads the mapped file directly. */
TN_API TN_CHECK tn_status tn_io_load_graph(tn_ctx *ctx, tn_graph *g, const char *path);

/* ---- npy: one array ------------------------------------------------------------------------------------------------------ */

/* Format versions 1 to 3, little-endian, C order (Fortran order where both are the same). Free *out_data with tn_io_free. */
TN_API TN_CHECK tn_status tn_io_npy_load(tn_ctx *ctx, const char *path, tn_dtype *out_dtype, tn_shape *out_shape,
                                         void **out_data);
TN_API TN_CHECK tn_status tn_io_npy_parse(tn_ctx *ctx, const void *bytes, size_t n_bytes, const char *name, tn_dtype *out_dtype,
                                          tn_shape *out_shape, void **out_data);
TN_API TN_CHECK tn_status tn_io_npy_save(tn_ctx *ctx, const char *path, tn_dtype dtype, tn_shape shape, const void *data);

/* ---- CSV: a table of numbers --------------------------------------------------------------------------------------------- */

/* Rows of equally many comma-separated numbers after skip_lines lines of heading; dtype is TN_F32, TN_F64, TN_I32 or TN_I64
 * (whole numbers in range only; those with a point or an exponent below 2^53). *out_shape is rows, columns. Free *out_data with
 * tn_io_free. */
TN_API TN_CHECK tn_status tn_io_csv_load(tn_ctx *ctx, const char *path, tn_dtype dtype, int skip_lines, tn_shape *out_shape,
                                         void **out_data);
TN_API TN_CHECK tn_status tn_io_csv_parse(tn_ctx *ctx, const void *bytes, size_t n_bytes, const char *name, tn_dtype dtype,
                                          int skip_lines, tn_shape *out_shape, void **out_data);

#ifdef __cplusplus
}
#endif
#endif
