/*
llm.h - language models from GGUF files, on gcuda.h                                                              MIT

Loads a model, turns text into tokens, computes logits of several sequences in one batch, draws the next token, saves
and restores the state of a session. Architectures: Llama (1 to 3, SmolLM2, Mistral), Qwen2, Qwen3, Qwen3-MoE, Gemma 3,
gpt-oss, Phi-3 and BERT. A file of another architecture, with an unknown pre-tokenizer, or without a required key or
tensor, is refused by name.

BUILD
    #define GCUDA_IMPLEMENTATION            // in exactly one C or C++ file
    #include "gcuda.h"
    #define LLM_IMPLEMENTATION
    #include "llm.h"

    cc -O2 my.c -o my -pthread -lm -ldl     // with CUDA: as gcuda.h says

QUICK START
    struct llm_model * model = NULL;
    struct llm_session * session = NULL;
    struct llm_sampler sampler;
    int32_t tokens[256], token;
    size_t n = 0, size;
    llm_sampler_init(&sampler, NULL);                                            // greedy
    gcuda_status st = llm_model_load("model.gguf", NULL, &model);
    if (st == GCUDA_STATUS_SUCCESS) { st = llm_session_new(model, NULL, &session); }
    if (st == GCUDA_STATUS_SUCCESS) {
        st = llm_tokenize(model, "Once upon a time", 16, LLM_ADD_SPECIAL, tokens, 256, &n);
    }
    if (st == GCUDA_STATUS_SUCCESS) { st = llm_eval_tokens(session, 0, tokens, n); }
    for (int i = 0; i < 50 && st == GCUDA_STATUS_SUCCESS; ++i) {
        st = llm_sample(session, 0, &sampler, &token);
        if (st != GCUDA_STATUS_SUCCESS || llm_token_is_end(model, token)) { break; }
        const char * piece = llm_token_piece(model, token, &size);               // bytes, not always whole characters
        fwrite(piece, 1, size, stdout);
        st = llm_eval_tokens(session, 0, &token, 1);
    }
    if (st != GCUDA_STATUS_SUCCESS) { fprintf(stderr, "%s\n", gcuda_last_error()); }
    llm_session_free(session);
    llm_model_free(model);

OBJECTS
    A model is the file's weights, on one device or several, and its vocabulary. It does not change once it is loaded:
    any number of sessions may use it, on several threads. A session is a KV cache and the memory of one evaluation; one
    thread at a time. A sampler is a plain struct of the caller's. Free sessions before their model.

MEMORY
    Host memory comes from gcuda's allocator (gcuda_set_allocator). Warnings go to the log of llm_model_params. There is
    no global state. After a session's first evaluation, evaluating and sampling allocate nothing; but on a GPU a
    prompt's graph gets a new plan.

ERRORS
    A function that can fail returns a gcuda_status and leaves a message with names and numbers in
    gcuda_last_error(). Nothing aborts, exits or prints. After a failed evaluation a session can be used again: it
    keeps its earlier tokens and the chunks that were complete (llm_seq_length counts them). A model or session that is
    NULL is refused too; functions without a status then return zeros, false or NULL.

GAME LOOP
    llm_submit queues a batch, llm_poll works on it for a limited number of microseconds, llm_logits reads the result:

        if (!llm_is_busy(session)) { st = llm_submit(session, &batch); }
        st = llm_poll(session, 2000, &is_done);                                  // 2 ms of this frame
        if (is_done) { llm_sample(...); }

CONTENTS  (search for the tag)
    >>types      tokens, models, sessions: the declarations
    >>base       errors, arenas, growing arrays
    >>unicode    UTF-8, classes of characters
    >>pre        pre-tokenizers: expressions that split text into pieces
    >>vocab      vocabulary: symbols, special tokens, ends
    >>tokenize   text to tokens and back
    >>chat       chat templates
    >>arch       architectures: parameters, tensors, as tables
    >>model      loading
    >>cells      which cell of a cache holds which position of which sequence
    >>build      graphs
    >>session    evaluating batches
    >>state      saving and restoring
    >>sample     drawing a token
*/
#ifndef LLM_H
#define LLM_H

#include "gcuda.h"

#ifndef LLM_API
#define LLM_API extern
#endif

#ifdef __cplusplus
extern "C" {
#endif

// =====================================================================================================
// >>types   tokens, models, sessions: the declarations
// =====================================================================================================

enum {
    LLM_MAX_SEQS = 64,      // sequences of a session
    LLM_MAX_LAYERS = 512,   // of a model
    LLM_MAX_PENALTY = 1024, // most tokens that a sampler remembers
    LLM_MAX_TOP_K = 1024
};

struct llm_model;
struct llm_session;

// ---- models ----

// Called during loading of weights and evaluation of a prompt. share: finished part, 0 to 1. Returning false stops the
// work (GCUDA_STATUS_ABORTED).
typedef bool (*llm_progress)(void * user, float share);

struct llm_model_params {
    const char * backend; // "CPU", "CUDA0" ...; NULL: a GPU if one works, else the CPU
    // > 0: distributes weights over the first n GPUs, the rest stays on the CPU. `backend` must be NULL
    int32_t n_gpus;
    llm_progress progress; // NULL: none
    void * progress_user;
    gcuda_log_callback log; // warnings about the file; NULL: none
    void * log_user;
};
// Reads a GGUF file. On the CPU weights stay in the mapped file, which must keep its length. Backends start on another
// thread meanwhile, from which gcuda calls its allocator and log. params NULL: zeros. On failure *out is NULL. The
// message names what is wrong:
//   IO
//   INVALID_DATA   a damaged file, a missing key or tensor, a wrong shape
//   UNSUPPORTED    another architecture, tokenizer or tensor type
//   ALLOC_FAILED
LLM_API gcuda_status llm_model_load(const char * path, const struct llm_model_params * params, struct llm_model ** out);
LLM_API void llm_model_free(struct llm_model * model); // NULL is allowed

struct llm_load_times { // microseconds
    int64_t file_us;    // opening and reading the keys
    int64_t vocab_us;   // tables of the vocabulary
    int64_t backend_us; // starting the backends, on another thread; the first one on a GPU starts its driver
    int64_t wait_us;    // for the backends, after reading the file
    int64_t weights_us; // memory and copies
    int64_t all_us;     // llm_model_load
};

struct llm_info {
    const char * arch;          // "llama"
    const char * name;          // general.name, or ""
    const char * backend;       // backends of the weights, separated by blanks
    const char * template_name; // of chats: "chatml"; NULL: unknown
    int32_t n_vocab, n_ctx_train, n_embd, n_layers, n_heads, n_heads_kv, head_size, n_experts, window;
    int64_t n_params; // elements of all weights
    size_t n_bytes;   // of all weights
    bool is_encoder;  // BERT: llm_embed, no logits
    struct llm_load_times load;
};
LLM_API struct llm_info llm_model_info(const struct llm_model * model); // strings live as long as the model

// ---- tokens ----

enum llm_tokenize_flag {
    LLM_ADD_SPECIAL = 1,  // adds the model's special tokens: bos, eos, [CLS] ... [SEP]
    LLM_PARSE_SPECIAL = 2 // text such as <|im_end|> becomes its control token. Not for untrusted text
};
// text has n_bytes bytes and need not be valid UTF-8. Writes at most `capacity` tokens; *n_tokens is their total
// number. INVALID_ARGUMENT: capacity is too small. With tokens NULL and capacity 0 it only counts, without an error.
LLM_API gcuda_status llm_tokenize(const struct llm_model * model, const char * text, size_t n_bytes, int flags,
    int32_t * tokens, size_t capacity, size_t * n_tokens);
// Text of tokens, without a terminator; text, capacity and *n_bytes as for llm_tokenize. with_special: writes names of
// control tokens too.
LLM_API gcuda_status llm_detokenize(const struct llm_model * model, const int32_t * tokens, size_t n_tokens,
    bool with_special, char * text, size_t capacity, size_t * n_bytes);
// Bytes that a token adds to the text, and their number; for a control token its name. "": no such token.
LLM_API const char * llm_token_piece(const struct llm_model * model, int32_t token, size_t * n_bytes);
LLM_API bool llm_token_is_end(const struct llm_model * model, int32_t token);     // the answer ends here
LLM_API bool llm_token_is_special(const struct llm_model * model, int32_t token); // control, unknown or unused: no text
LLM_API int32_t llm_token_bos(const struct llm_model * model);                    // -1: the model has none
// Number of bytes that can be shown: all except an incomplete UTF-8 character at the end.
LLM_API size_t llm_utf8_whole(const char * text, size_t n_bytes);

// ---- chats ----

struct llm_message {
    const char * role; // "system", "user" or "assistant"
    const char * content;
};
// The tokens of a chat in the model's template (llm_info.template_name), recognised by the file's
// tokenizer.chat_template. UNSUPPORTED: an unknown template. Messages are plain text: nothing in them becomes a control
// token. is_open: the assistant's next message begins at the end. Capacity and *n_tokens as for llm_tokenize.
LLM_API gcuda_status llm_chat_tokenize(const struct llm_model * model, const struct llm_message * messages,
    size_t n_messages, bool is_open, int32_t * tokens, size_t capacity, size_t * n_tokens);
// Text of tokens, without bos and without a terminator.
LLM_API gcuda_status llm_chat_text(const struct llm_model * model, const struct llm_message * messages,
    size_t n_messages, bool is_open, char * text, size_t capacity, size_t * n_bytes);

// ---- sessions ----

struct llm_session_params {
    // cells of the KV cache, shared by all sequences; 0: 4096, or the model's training context if that is smaller
    int32_t n_ctx;
    int32_t n_seqs;    // sequences, numbered from 0; 0: 1
    int32_t n_chunk;   // tokens computed at a time; 0: 256 on the CPU; up to 2048 on a GPU, limited by its memory
    int32_t n_outputs; // tokens of a chunk whose logits can be kept; 0: n_seqs
    int32_t n_threads; // on the CPU; 0: gcuda's default
    // GCUDA_TYPE_F16, BF16, F32, Q8_0, or Q4_0 (keys and values are rotated, which loses less at 4 bits)
    enum gcuda_type kv_type;
    bool kv_is_set; // false: F16
    // > 0: only this number of the largest logits is copied from the device, for llm_sample; llm_logits has none. The
    // sampler's top_k (1 if greedy) + repeat_last gives the same results as 0: all. Ties for the largest logit: 1 takes
    // the last, other values the first
    int32_t n_best;
    bool exact;            // products with unrounded activations (GCUDA_PREC_F32): slower, for comparisons
    llm_progress progress; // after each chunk of a prompt, on the CPU about every 10 ms; NULL: none
    void * progress_user;
};
LLM_API gcuda_status llm_session_new(
    const struct llm_model * model, const struct llm_session_params * params, struct llm_session ** out);
LLM_API void llm_session_free(struct llm_session * session); // NULL is allowed
// The i-th backend of the session, for gcuda's statistics and profiles; owned by the session. NULL: no more.
LLM_API gcuda_backend_t llm_session_backend(const struct llm_session * session, int32_t i);

struct llm_batch {
    const int32_t * tokens;
    const int32_t * seqs; // sequence of each token; NULL: all of sequence 0
    const bool * outputs; // outputs: tokens that get logits; NULL: last token of each sequence
    size_t n_tokens;
};
// Appends the tokens to their sequences and computes them in chunks. If one fails, earlier chunks remain.
// INVALID_ARGUMENT: a token or sequence out of range, more outputs than n_outputs. UNSUPPORTED: the cache is full
// (llm_seq_shift makes room).
LLM_API gcuda_status llm_eval(struct llm_session * session, const struct llm_batch * batch);
LLM_API gcuda_status llm_eval_tokens(
    struct llm_session * session, int32_t seq, const int32_t * tokens, size_t n_tokens);

// llm_eval in steps. submit checks and copies the batch. poll works for about max_us microseconds (0: until the end)
// and says whether all is done. One GPU computes a chunk asynchronously: poll starts the next chunk and checks whether
// it has finished. With several GPUs each call computes one chunk, however long that takes. cancel drops the remaining
// chunks.
LLM_API gcuda_status llm_submit(struct llm_session * session, const struct llm_batch * batch);
LLM_API gcuda_status llm_poll(struct llm_session * session, int64_t max_us, bool * is_done);
LLM_API void llm_cancel(struct llm_session * session);
LLM_API bool llm_is_busy(const struct llm_session * session);

// Logits [n_vocab] of the i-th output of the last batch; negative i counts from the end. NULL if there is none. Valid
// until the session evaluates again. None in a session with n_best.
LLM_API const float * llm_logits(const struct llm_session * session, int32_t i);
// Logits of the last output of a sequence in the last batch.
LLM_API const float * llm_seq_logits(const struct llm_session * session, int32_t seq);
LLM_API int32_t llm_n_outputs(const struct llm_session * session);

// ---- sequences: what the KV cache holds ----

// Positions are 0, 1, 2 ... in every sequence. A cell may belong to several sequences (llm_seq_copy): a shared
// beginning.
LLM_API int32_t llm_seq_length(const struct llm_session * session, int32_t seq); // tokens; the next one's position
// -1: no such position
LLM_API int32_t llm_seq_token(const struct llm_session * session, int32_t seq, int32_t position);
// Keeps the longest prefix that the sequence shares with these tokens, at most n_tokens - 1 tokens, and removes the
// rest. Evaluate the tokens from *n_kept on. 0 if an attention window no longer has the positions before.
LLM_API gcuda_status llm_seq_keep_prefix(
    struct llm_session * session, int32_t seq, const int32_t * tokens, size_t n_tokens, size_t * n_kept);
// drops positions from length on
LLM_API gcuda_status llm_seq_truncate(struct llm_session * session, int32_t seq, int32_t length);
LLM_API gcuda_status llm_seq_copy(struct llm_session * session, int32_t from, int32_t to); // `to` is replaced
// Drops n_drop positions after the first n_keep, and moves the later ones forward; progress is not asked meanwhile.
// UNSUPPORTED: positions are shared with another sequence, or the cache of layers with a window lacks some of them. If
// the device fails, the later positions are lost (llm_seq_length says so).
LLM_API gcuda_status llm_seq_shift(struct llm_session * session, int32_t seq, int32_t n_keep, int32_t n_drop);
LLM_API int32_t llm_n_ctx(const struct llm_session * session);
LLM_API int32_t llm_n_free(const struct llm_session * session); // cells without a token

// Contents of the cache as bytes, for the same model, cache type and byte order; n_ctx may differ. Capacity as for
// llm_tokenize. restore replaces all sequences; on failure the session is empty.
LLM_API gcuda_status llm_state_save(struct llm_session * session, void * data, size_t capacity, size_t * n_bytes);
LLM_API gcuda_status llm_state_restore(struct llm_session * session, const void * data, size_t n_bytes);

// ---- embeddings ----

// One vector [n_embd] of length 1 for the text's tokens, pooled as the file says. At most n_chunk tokens. It uses no
// sequence of the session; if the model has a cache, all sequences must be empty.
LLM_API gcuda_status llm_embed(struct llm_session * session, const int32_t * tokens, size_t n_tokens, float * vector);

// ---- sampling ----

struct llm_sampler_params {
    float temperature; // 0: the most probable token; logits are divided by it, after the filters below
    int32_t top_k;     // only the k most probable; 0: off (at most LLM_MAX_TOP_K)
    float top_p;       // the fewest tokens with this total probability; 0 or 1: off
    float min_p;       // tokens with at least this fraction of the largest probability; 0: off
    // recent tokens: positive logits are divided by it, negative ones multiplied; 0 or 1: off
    float repeat_penalty;
    int32_t repeat_last; // how many tokens are "lately"; 0: 64
    uint64_t seed;       // the same seed and logits give the same tokens
};
struct llm_sampler {
    struct llm_sampler_params params;
    uint64_t random[4];
    int32_t last[LLM_MAX_PENALTY]; // ring of accepted tokens
    int32_t n_last, next;
};
// params NULL: zeros, which is greedy. Allocates nothing. INVALID_ARGUMENT: NaN, a negative number, more than the
// maxima.
LLM_API gcuda_status llm_sampler_init(struct llm_sampler * sampler, const struct llm_sampler_params * params);
LLM_API void llm_sampler_accept(struct llm_sampler * sampler, int32_t token); // for the penalty; llm_sample calls it
// Draws from the last logits of the sequence. INVALID_DATA: logits are NaN (with n_best: among the n_best largest), or
// all are -inf.
LLM_API gcuda_status llm_sample(
    struct llm_session * session, int32_t seq, struct llm_sampler * sampler, int32_t * token);

#ifdef __cplusplus
}
#endif
#endif // LLM_H

#if defined(LLM_IMPLEMENTATION) && !defined(LLM_IMPLEMENTATION_DONE)
#define LLM_IMPLEMENTATION_DONE
#ifdef GCUDA_NO_GGUF
#error "llm.h reads models with gcuda.h's GGUF reader: compile without GCUDA_NO_GGUF"
#endif

#include <float.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

// =====================================================================================================
// >>base   errors, arenas, growing arrays
// =====================================================================================================

#define LLMI_TRY(call)                                                 \
    do {                                                               \
        const gcuda_status try_status = (call);                        \
        if (try_status != GCUDA_STATUS_SUCCESS) { return try_status; } \
    } while (0)

#if defined(__GNUC__)
#define LLMI_PRINTF(a, b) __attribute__((format(printf, a, b)))
#define LLMI_PREFETCH(address) __builtin_prefetch(address)
#else
#define LLMI_PRINTF(a, b)
#define LLMI_PREFETCH(address) ((void) (address))
#endif

LLMI_PRINTF(2, 3) static gcuda_status llmi_fail(gcuda_status status, const char * fmt, ...) {
    char text[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    return gcuda_set_last_error(status, text);
}

static int64_t llmi_min(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t llmi_max(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t llmi_pad(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// n zeroed elements in the arena (at least one). NULL on failure, with the last error set.
static void * llmi_new(struct gcuda_context * arena, size_t n, size_t size) {
    if (n == 0) { n = 1; }
    if (n > SIZE_MAX / 2 / size) {
        llmi_fail(GCUDA_STATUS_ALLOC_FAILED, "%zu elements of %zu bytes do not fit into memory", n, size);
        return NULL;
    }
    void * p = gcuda_new_buffer(arena, n * size);
    if (p != NULL) { memset(p, 0, n * size); }
    return p;
}
#define LLMI_NEW(arena, type, n) ((type *) llmi_new((arena), (size_t) (n), sizeof(type)))

static gcuda_status llmi_made(const void * object) { return object ? GCUDA_STATUS_SUCCESS : GCUDA_STATUS_ALLOC_FAILED; }

static struct gcuda_context * llmi_arena(size_t size) { // 0: it grows
    const struct gcuda_init_params params = { size, NULL, true };
    return gcuda_init(params);
}

// Output with a capacity: elements beyond it are counted, not written.
struct llmi_out {
    void * data;
    size_t size, capacity, n; // size of an element; elements that fit; all elements
};
static void llmi_put(struct llmi_out * out, const void * elements, size_t n) {
    const size_t at = out->n < out->capacity ? out->n : out->capacity;
    const size_t fit = n < out->capacity - at ? n : out->capacity - at;
    if (fit > 0) { memcpy((char *) out->data + at * out->size, elements, fit * out->size); }
    out->n += n;
}
static gcuda_status llmi_put_done(const struct llmi_out * out, const char * what, size_t * n) {
    *n = out->n;
    if (out->data == NULL || out->n <= out->capacity) { return GCUDA_STATUS_SUCCESS; }
    return llmi_fail(
        GCUDA_STATUS_INVALID_ARGUMENT, "%s: %zu wanted, there is room for %zu", what, out->n, out->capacity);
}
static struct llmi_out llmi_out_of(void * data, size_t size, size_t capacity) {
    const struct llmi_out out = { data, size, data ? capacity : 0, 0 };
    return out;
}

// =====================================================================================================
// >>unicode   UTF-8, classes of characters
// =====================================================================================================

// unicode: written by tests/tools/unicode_tables.py
// Classes of Unicode code points (package regex 2026.11.19), lower case and decompositions (Unicode 14.0.0)
// clang-format off
enum llmi_uc {
    LLMI_UC_SPACE, // white space; contains all of Z
    LLMI_UC_UPPER, // Lu, Lt
    LLMI_UC_LOWER, // Ll
    LLMI_UC_LETTER, // Lm, Lo: letters without case
    LLMI_UC_NUMBER, // Nd, Nl, No
    LLMI_UC_ACCENT, // Mn: marks that take no room
    LLMI_UC_MARK, // Mc, Me
    LLMI_UC_PUNCT, // P
    LLMI_UC_SYMBOL, // S
    LLMI_UC_CONTROL, // Cc, Cf, Co, Cs, less white space
    LLMI_UC_UNASSIGNED, // Cn
    LLMI_UC_CASE_PAIRS // only in llmi_uc_runs: upper and lower alternate, upper first
};

// first code point of a run << 4 | class
static const uint32_t llmi_uc_runs[2872] = {
    0x9, 0x90, 0xe9, 0x200, 0x217, 0x248, 0x257, 0x2b8, 0x2c7, 0x304, 0x3a7, 0x3c8, 0x3f7, 0x411, 0x5b7, 0x5e8, 0x5f7,
    0x608, 0x612, 0x7b7, 0x7c8, 0x7d7, 0x7e8, 0x7f9, 0x850, 0x869, 0xa00, 0xa17, 0xa28, 0xa77, 0xa88, 0xaa3, 0xab7,
    0xac8, 0xad9, 0xae8, 0xb24, 0xb48, 0xb52, 0xb67, 0xb88, 0xb94, 0xba3, 0xbb7, 0xbc4, 0xbf7, 0xc01, 0xd78, 0xd81,
    0xdf2, 0xf78, 0xf82, 0x100b, 0x1382, 0x139b, 0x1492, 0x14ab, 0x179b, 0x17f2, 0x1811, 0x1832, 0x1841, 0x1852, 0x1861,
    0x1882, 0x1891, 0x18c2, 0x18e1, 0x1922, 0x1931, 0x1952, 0x1961, 0x1992, 0x19c1, 0x19e2, 0x19f1, 0x1a12, 0x1a2b,
    0x1a7b, 0x1ab2, 0x1ac1, 0x1ad2, 0x1ae1, 0x1b02, 0x1b11, 0x1b42, 0x1b51, 0x1b62, 0x1b71, 0x1b92, 0x1bb3, 0x1bc1,
    0x1bd2, 0x1c03, 0x1c41, 0x1c62, 0x1c71, 0x1c92, 0x1ca1, 0x1cc2, 0x1cdb, 0x1dd2, 0x1deb, 0x1f02, 0x1f11, 0x1f32,
    0x1f41, 0x1f52, 0x1f61, 0x1f92, 0x1fab, 0x2342, 0x23a1, 0x23c2, 0x23d1, 0x23f2, 0x2411, 0x2422, 0x2431, 0x2472,
    0x248b, 0x2502, 0x2943, 0x2962, 0x2b03, 0x2c28, 0x2c63, 0x2d28, 0x2e03, 0x2e58, 0x2ec3, 0x2ed8, 0x2ee3, 0x2ef8,
    0x3005, 0x370b, 0x3743, 0x3758, 0x3761, 0x3772, 0x378a, 0x37a3, 0x37b2, 0x37e7, 0x37f1, 0x380a, 0x3848, 0x3861,
    0x3877, 0x3881, 0x38ba, 0x38c1, 0x38da, 0x38e1, 0x3902, 0x3911, 0x3a2a, 0x3a31, 0x3ac2, 0x3cf1, 0x3d02, 0x3d21,
    0x3d52, 0x3d8b, 0x3f02, 0x3f41, 0x3f52, 0x3f68, 0x3f71, 0x3f82, 0x3f91, 0x3fb2, 0x3fd1, 0x4302, 0x460b, 0x4828,
    0x4835, 0x4886, 0x48ab, 0x4c1b, 0x4cf2, 0x4d0b, 0x530a, 0x5311, 0x557a, 0x5583, 0x55a7, 0x5602, 0x5897, 0x58b3,
    0x58d8, 0x590a, 0x5915, 0x5be7, 0x5bf5, 0x5c07, 0x5c15, 0x5c37, 0x5c45, 0x5c67, 0x5c75, 0x5caa, 0x5d03, 0x5eba,
    0x5ef3, 0x5f37, 0x5f5a, 0x6009, 0x6068, 0x6097, 0x60b8, 0x60c7, 0x60e8, 0x6105, 0x61b7, 0x61c9, 0x61d7, 0x6203,
    0x64b5, 0x6604, 0x66a7, 0x66e3, 0x6705, 0x6713, 0x6d47, 0x6d53, 0x6d65, 0x6dd9, 0x6de8, 0x6df5, 0x6e53, 0x6e75,
    0x6e98, 0x6ea5, 0x6ee3, 0x6f04, 0x6fa3, 0x6fd8, 0x6ff3, 0x7007, 0x70ea, 0x70f9, 0x7103, 0x7115, 0x7123, 0x7305,
    0x74ba, 0x74d3, 0x7a65, 0x7b13, 0x7b2a, 0x7c04, 0x7ca3, 0x7eb5, 0x7f43, 0x7f68, 0x7f77, 0x7fa3, 0x7fba, 0x7fd5,
    0x7fe8, 0x8003, 0x8165, 0x81a3, 0x81b5, 0x8243, 0x8255, 0x8283, 0x8295, 0x82ea, 0x8307, 0x83fa, 0x8403, 0x8595,
    0x85ca, 0x85e7, 0x85fa, 0x8603, 0x86ba, 0x8703, 0x8888, 0x8893, 0x8909, 0x892a, 0x8975, 0x8a03, 0x8ca5, 0x8e29,
    0x8e35, 0x9036, 0x9043, 0x93a5, 0x93b6, 0x93c5, 0x93d3, 0x93e6, 0x9415, 0x9496, 0x94d5, 0x94e6, 0x9503, 0x9515,
    0x9583, 0x9625, 0x9647, 0x9664, 0x9707, 0x9713, 0x9815, 0x9826, 0x984a, 0x9853, 0x98da, 0x98f3, 0x991a, 0x9933,
    0x9a9a, 0x9aa3, 0x9b1a, 0x9b23, 0x9b3a, 0x9b63, 0x9baa, 0x9bc5, 0x9bd3, 0x9be6, 0x9c15, 0x9c5a, 0x9c76, 0x9c9a,
    0x9cb6, 0x9cd5, 0x9ce3, 0x9cfa, 0x9d76, 0x9d8a, 0x9dc3, 0x9dea, 0x9df3, 0x9e25, 0x9e4a, 0x9e64, 0x9f03, 0x9f28,
    0x9f44, 0x9fa8, 0x9fc3, 0x9fd7, 0x9fe5, 0x9ffa, 0xa015, 0xa036, 0xa04a, 0xa053, 0xa0ba, 0xa0f3, 0xa11a, 0xa133,
    0xa29a, 0xa2a3, 0xa31a, 0xa323, 0xa34a, 0xa353, 0xa37a, 0xa383, 0xa3aa, 0xa3c5, 0xa3da, 0xa3e6, 0xa415, 0xa43a,
    0xa475, 0xa49a, 0xa4b5, 0xa4ea, 0xa515, 0xa52a, 0xa593, 0xa5da, 0xa5e3, 0xa5fa, 0xa664, 0xa705, 0xa723, 0xa755,
    0xa767, 0xa77a, 0xa815, 0xa836, 0xa84a, 0xa853, 0xa8ea, 0xa8f3, 0xa92a, 0xa933, 0xaa9a, 0xaaa3, 0xab1a, 0xab23,
    0xab4a, 0xab53, 0xabaa, 0xabc5, 0xabd3, 0xabe6, 0xac15, 0xac6a, 0xac75, 0xac96, 0xacaa, 0xacb6, 0xacd5, 0xacea,
    0xad03, 0xad1a, 0xae03, 0xae25, 0xae4a, 0xae64, 0xaf07, 0xaf18, 0xaf2a, 0xaf93, 0xafa5, 0xb00a, 0xb015, 0xb026,
    0xb04a, 0xb053, 0xb0da, 0xb0f3, 0xb11a, 0xb133, 0xb29a, 0xb2a3, 0xb31a, 0xb323, 0xb34a, 0xb353, 0xb3aa, 0xb3c5,
    0xb3d3, 0xb3e6, 0xb3f5, 0xb406, 0xb415, 0xb45a, 0xb476, 0xb49a, 0xb4b6, 0xb4d5, 0xb4ea, 0xb535, 0xb576, 0xb58a,
    0xb5c3, 0xb5ea, 0xb5f3, 0xb625, 0xb64a, 0xb664, 0xb708, 0xb713, 0xb724, 0xb78a, 0xb825, 0xb833, 0xb84a, 0xb853,
    0xb8ba, 0xb8e3, 0xb91a, 0xb923, 0xb96a, 0xb993, 0xb9ba, 0xb9c3, 0xb9da, 0xb9e3, 0xba0a, 0xba33, 0xba5a, 0xba83,
    0xbaba, 0xbae3, 0xbbaa, 0xbbe6, 0xbc05, 0xbc16, 0xbc3a, 0xbc66, 0xbc9a, 0xbca6, 0xbcd5, 0xbcea, 0xbd03, 0xbd1a,
    0xbd76, 0xbd8a, 0xbe64, 0xbf38, 0xbfba, 0xc005, 0xc016, 0xc045, 0xc053, 0xc0da, 0xc0e3, 0xc11a, 0xc123, 0xc29a,
    0xc2a3, 0xc3aa, 0xc3c5, 0xc3d3, 0xc3e5, 0xc416, 0xc45a, 0xc465, 0xc49a, 0xc4a5, 0xc4ea, 0xc555, 0xc57a, 0xc583,
    0xc5ba, 0xc5c3, 0xc5ea, 0xc603, 0xc625, 0xc64a, 0xc664, 0xc70a, 0xc777, 0xc784, 0xc7f8, 0xc803, 0xc815, 0xc826,
    0xc847, 0xc853, 0xc8da, 0xc8e3, 0xc91a, 0xc923, 0xca9a, 0xcaa3, 0xcb4a, 0xcb53, 0xcbaa, 0xcbc5, 0xcbd3, 0xcbe6,
    0xcbf5, 0xcc06, 0xcc5a, 0xcc65, 0xcc76, 0xcc9a, 0xcca6, 0xccc5, 0xccea, 0xcd56, 0xcd7a, 0xcdc3, 0xcdfa, 0xce03,
    0xce25, 0xce4a, 0xce64, 0xcf0a, 0xcf13, 0xcf36, 0xcf4a, 0xd005, 0xd026, 0xd043, 0xd0da, 0xd0e3, 0xd11a, 0xd123,
    0xd3b5, 0xd3d3, 0xd3e6, 0xd415, 0xd45a, 0xd466, 0xd49a, 0xd4a6, 0xd4d5, 0xd4e3, 0xd4f8, 0xd50a, 0xd543, 0xd576,
    0xd584, 0xd5f3, 0xd625, 0xd64a, 0xd664, 0xd798, 0xd7a3, 0xd80a, 0xd815, 0xd826, 0xd84a, 0xd853, 0xd97a, 0xd9a3,
    0xdb2a, 0xdb33, 0xdbca, 0xdbd3, 0xdbea, 0xdc03, 0xdc7a, 0xdca5, 0xdcba, 0xdcf6, 0xdd25, 0xdd5a, 0xdd65, 0xdd7a,
    0xdd86, 0xde0a, 0xde64, 0xdf0a, 0xdf26, 0xdf47, 0xdf5a, 0xe013, 0xe315, 0xe323, 0xe345, 0xe3ba, 0xe3f8, 0xe403,
    0xe475, 0xe4f7, 0xe504, 0xe5a7, 0xe5ca, 0xe813, 0xe83a, 0xe843, 0xe85a, 0xe863, 0xe8ba, 0xe8c3, 0xea4a, 0xea53,
    0xea6a, 0xea73, 0xeb15, 0xeb23, 0xeb45, 0xebd3, 0xebea, 0xec03, 0xec5a, 0xec63, 0xec7a, 0xec85, 0xecfa, 0xed04,
    0xedaa, 0xedc3, 0xee0a, 0xf003, 0xf018, 0xf047, 0xf138, 0xf147, 0xf158, 0xf185, 0xf1a8, 0xf204, 0xf348, 0xf355,
    0xf368, 0xf375, 0xf388, 0xf395, 0xf3a7, 0xf3e6, 0xf403, 0xf48a, 0xf493, 0xf6da, 0xf715, 0xf7f6, 0xf805, 0xf857,
    0xf865, 0xf883, 0xf8d5, 0xf98a, 0xf995, 0xfbda, 0xfbe8, 0xfc65, 0xfc78, 0xfcda, 0xfce8, 0xfd07, 0xfd58, 0xfd97,
    0xfdba, 0x10003, 0x102b6, 0x102d5, 0x10316, 0x10325, 0x10386, 0x10395, 0x103b6, 0x103d5, 0x103f3, 0x10404, 0x104a7,
    0x10503, 0x10566, 0x10585, 0x105a3, 0x105e5, 0x10613, 0x10626, 0x10653, 0x10676, 0x106e3, 0x10715, 0x10753, 0x10825,
    0x10836, 0x10855, 0x10876, 0x108d5, 0x108e3, 0x108f6, 0x10904, 0x109a6, 0x109d5, 0x109e8, 0x10a01, 0x10c6a, 0x10c71,
    0x10c8a, 0x10cd1, 0x10cea, 0x10d02, 0x10fb7, 0x10fc3, 0x10fd2, 0x11003, 0x1249a, 0x124a3, 0x124ea, 0x12503, 0x1257a,
    0x12583, 0x1259a, 0x125a3, 0x125ea, 0x12603, 0x1289a, 0x128a3, 0x128ea, 0x12903, 0x12b1a, 0x12b23, 0x12b6a, 0x12b83,
    0x12bfa, 0x12c03, 0x12c1a, 0x12c23, 0x12c6a, 0x12c83, 0x12d7a, 0x12d83, 0x1311a, 0x13123, 0x1316a, 0x13183, 0x135ba,
    0x135d5, 0x13607, 0x13694, 0x137da, 0x13803, 0x13908, 0x139aa, 0x13a01, 0x13f6a, 0x13f82, 0x13fea, 0x14007, 0x14013,
    0x166d8, 0x166e7, 0x166f3, 0x16800, 0x16813, 0x169b7, 0x169da, 0x16a03, 0x16eb7, 0x16ee4, 0x16f13, 0x16f9a, 0x17003,
    0x17125, 0x17156, 0x1716a, 0x171f3, 0x17325, 0x17346, 0x17357, 0x1737a, 0x17403, 0x17525, 0x1754a, 0x17603, 0x176da,
    0x176e3, 0x1771a, 0x17725, 0x1774a, 0x17803, 0x17b45, 0x17b66, 0x17b75, 0x17be6, 0x17c65, 0x17c76, 0x17c95, 0x17d47,
    0x17d73, 0x17d87, 0x17db8, 0x17dc3, 0x17dd5, 0x17dea, 0x17e04, 0x17eaa, 0x17f04, 0x17faa, 0x18007, 0x180b5, 0x180e9,
    0x180f5, 0x18104, 0x181aa, 0x18203, 0x1879a, 0x18803, 0x18855, 0x18873, 0x18a95, 0x18aa3, 0x18aba, 0x18b03, 0x18f6a,
    0x19003, 0x191fa, 0x19205, 0x19236, 0x19275, 0x19296, 0x192ca, 0x19306, 0x19325, 0x19336, 0x19395, 0x193ca, 0x19408,
    0x1941a, 0x19447, 0x19464, 0x19503, 0x196ea, 0x19703, 0x1975a, 0x19803, 0x19aca, 0x19b03, 0x19caa, 0x19d04, 0x19dba,
    0x19de8, 0x1a003, 0x1a175, 0x1a196, 0x1a1b5, 0x1a1ca, 0x1a1e7, 0x1a203, 0x1a556, 0x1a565, 0x1a576, 0x1a585, 0x1a5fa,
    0x1a605, 0x1a616, 0x1a625, 0x1a636, 0x1a655, 0x1a6d6, 0x1a735, 0x1a7da, 0x1a7f5, 0x1a804, 0x1a8aa, 0x1a904, 0x1a9aa,
    0x1aa07, 0x1aa73, 0x1aa87, 0x1aaea, 0x1ab05, 0x1abe6, 0x1abf5, 0x1af1a, 0x1b005, 0x1b046, 0x1b053, 0x1b345, 0x1b356,
    0x1b365, 0x1b3b6, 0x1b3c5, 0x1b3d6, 0x1b425, 0x1b436, 0x1b453, 0x1b4da, 0x1b4e7, 0x1b504, 0x1b5a7, 0x1b618, 0x1b6b5,
    0x1b748, 0x1b7d7, 0x1b805, 0x1b826, 0x1b833, 0x1ba16, 0x1ba25, 0x1ba66, 0x1ba85, 0x1baa6, 0x1bab5, 0x1bae3, 0x1bb04,
    0x1bba3, 0x1be65, 0x1be76, 0x1be85, 0x1bea6, 0x1bed5, 0x1bee6, 0x1bef5, 0x1bf26, 0x1bf4a, 0x1bfc7, 0x1c003, 0x1c246,
    0x1c2c5, 0x1c346, 0x1c365, 0x1c38a, 0x1c3b7, 0x1c404, 0x1c4aa, 0x1c4d3, 0x1c504, 0x1c5a3, 0x1c7e7, 0x1c802, 0x1c891,
    0x1c8a2, 0x1c8ba, 0x1c901, 0x1cbba, 0x1cbd1, 0x1cc07, 0x1cc8a, 0x1cd05, 0x1cd37, 0x1cd45, 0x1ce16, 0x1ce25, 0x1ce93,
    0x1ced5, 0x1cee3, 0x1cf45, 0x1cf53, 0x1cf76, 0x1cf85, 0x1cfa3, 0x1cfba, 0x1d002, 0x1d2c3, 0x1d6b2, 0x1d783, 0x1d792,
    0x1d9b3, 0x1dc05, 0x1e00b, 0x1e962, 0x1e9eb, 0x1f002, 0x1f081, 0x1f102, 0x1f16a, 0x1f181, 0x1f1ea, 0x1f202, 0x1f281,
    0x1f302, 0x1f381, 0x1f402, 0x1f46a, 0x1f481, 0x1f4ea, 0x1f502, 0x1f58a, 0x1f591, 0x1f5aa, 0x1f5b1, 0x1f5ca, 0x1f5d1,
    0x1f5ea, 0x1f5f1, 0x1f602, 0x1f681, 0x1f702, 0x1f7ea, 0x1f802, 0x1f881, 0x1f902, 0x1f981, 0x1fa02, 0x1fa81, 0x1fb02,
    0x1fb5a, 0x1fb62, 0x1fb81, 0x1fbd8, 0x1fbe2, 0x1fbf8, 0x1fc22, 0x1fc5a, 0x1fc62, 0x1fc81, 0x1fcd8, 0x1fd02, 0x1fd4a,
    0x1fd62, 0x1fd81, 0x1fdca, 0x1fdd8, 0x1fe02, 0x1fe81, 0x1fed8, 0x1ff0a, 0x1ff22, 0x1ff5a, 0x1ff62, 0x1ff81, 0x1ffd8,
    0x1fffa, 0x20000, 0x200b9, 0x20107, 0x20280, 0x202a9, 0x202f0, 0x20307, 0x20448, 0x20457, 0x20528, 0x20537, 0x205f0,
    0x20609, 0x2065a, 0x20669, 0x20704, 0x20713, 0x2072a, 0x20744, 0x207a8, 0x207d7, 0x207f3, 0x20804, 0x208a8, 0x208d7,
    0x208f3, 0x20a08, 0x20c5a, 0x20d05, 0x20dd6, 0x20e15, 0x20e26, 0x20e55, 0x20f1a, 0x21008, 0x21021, 0x21038, 0x21071,
    0x21088, 0x210a2, 0x210b1, 0x210e2, 0x21101, 0x21132, 0x21148, 0x21151, 0x21168, 0x21191, 0x211e8, 0x21241, 0x21258,
    0x21261, 0x21278, 0x21281, 0x21298, 0x212a1, 0x212e8, 0x212f2, 0x21301, 0x21342, 0x21353, 0x21392, 0x213a8, 0x213c2,
    0x213e1, 0x21408, 0x21451, 0x21462, 0x214a8, 0x214e2, 0x214f8, 0x21504, 0x21831, 0x21842, 0x21854, 0x218a8, 0x218ca,
    0x21908, 0x23087, 0x230c8, 0x23297, 0x232b8, 0x242aa, 0x24408, 0x244ba, 0x24604, 0x249c8, 0x24ea4, 0x25008, 0x27687,
    0x27764, 0x27948, 0x27c57, 0x27c78, 0x27e67, 0x27f08, 0x29837, 0x29998, 0x29d87, 0x29dc8, 0x29fc7, 0x29fe8, 0x2b74a,
    0x2b768, 0x2c001, 0x2c302, 0x2c601, 0x2c612, 0x2c621, 0x2c652, 0x2c67b, 0x2c6e1, 0x2c712, 0x2c721, 0x2c732, 0x2c751,
    0x2c762, 0x2c7c3, 0x2c7e1, 0x2c812, 0x2c82b, 0x2ce42, 0x2ce58, 0x2cebb, 0x2cef5, 0x2cf21, 0x2cf32, 0x2cf4a, 0x2cf97,
    0x2cfd4, 0x2cfe7, 0x2d002, 0x2d26a, 0x2d272, 0x2d28a, 0x2d2d2, 0x2d2ea, 0x2d303, 0x2d68a, 0x2d6f3, 0x2d707, 0x2d71a,
    0x2d7f5, 0x2d803, 0x2d97a, 0x2da03, 0x2da7a, 0x2da83, 0x2dafa, 0x2db03, 0x2db7a, 0x2db83, 0x2dbfa, 0x2dc03, 0x2dc7a,
    0x2dc83, 0x2dcfa, 0x2dd03, 0x2dd7a, 0x2dd83, 0x2ddfa, 0x2de05, 0x2e007, 0x2e2f3, 0x2e307, 0x2e508, 0x2e527, 0x2e5ea,
    0x2e607, 0x2e64a, 0x2e808, 0x2e9aa, 0x2e9b8, 0x2ef4a, 0x2f008, 0x2fd6a, 0x2ff08, 0x30000, 0x30017, 0x30048, 0x30053,
    0x30074, 0x30087, 0x30128, 0x30147, 0x30208, 0x30214, 0x302a5, 0x302e6, 0x30307, 0x30313, 0x30368, 0x30384, 0x303b3,
    0x303d7, 0x303e8, 0x3040a, 0x30413, 0x3097a, 0x30995, 0x309b8, 0x309d3, 0x30a07, 0x30a13, 0x30fb7, 0x30fc3, 0x3100a,
    0x31053, 0x3130a, 0x31313, 0x318fa, 0x31908, 0x31924, 0x31968, 0x31a03, 0x31c08, 0x31e6a, 0x31ef8, 0x31f03, 0x32008,
    0x321fa, 0x32204, 0x322a8, 0x32484, 0x32508, 0x32514, 0x32608, 0x32804, 0x328a8, 0x32b14, 0x32c08, 0x34003, 0x4dc08,
    0x4e003, 0xa48da, 0xa4908, 0xa4c7a, 0xa4d03, 0xa4fe7, 0xa5003, 0xa60d7, 0xa6103, 0xa6204, 0xa62a3, 0xa62ca, 0xa640b,
    0xa66e3, 0xa66f5, 0xa6706, 0xa6737, 0xa6745, 0xa67e7, 0xa67f3, 0xa680b, 0xa69c3, 0xa69e5, 0xa6a03, 0xa6e64, 0xa6f05,
    0xa6f27, 0xa6f8a, 0xa7008, 0xa7173, 0xa7208, 0xa722b, 0xa7302, 0xa732b, 0xa7703, 0xa7712, 0xa779b, 0xa77eb, 0xa7883,
    0xa7898, 0xa78bb, 0xa78f3, 0xa790b, 0xa7942, 0xa796b, 0xa7ab1, 0xa7af2, 0xa7b01, 0xa7b52, 0xa7b6b, 0xa7c51, 0xa7c82,
    0xa7c91, 0xa7ca2, 0xa7cb1, 0xa7cd2, 0xa7ceb, 0xa7dd1, 0xa7dea, 0xa7e21, 0xa7e3a, 0xa7f13, 0xa7f51, 0xa7f62, 0xa7f73,
    0xa7fa2, 0xa7fb3, 0xa8025, 0xa8033, 0xa8065, 0xa8073, 0xa80b5, 0xa80c3, 0xa8236, 0xa8255, 0xa8276, 0xa8288, 0xa82c5,
    0xa82da, 0xa8304, 0xa8368, 0xa83aa, 0xa8403, 0xa8747, 0xa878a, 0xa8806, 0xa8823, 0xa8b46, 0xa8c45, 0xa8c6a, 0xa8ce7,
    0xa8d04, 0xa8daa, 0xa8e05, 0xa8f23, 0xa8f87, 0xa8fb3, 0xa8fc7, 0xa8fd3, 0xa8ff5, 0xa9004, 0xa90a3, 0xa9265, 0xa92e7,
    0xa9303, 0xa9475, 0xa9526, 0xa954a, 0xa95f7, 0xa9603, 0xa97da, 0xa9805, 0xa9836, 0xa9843, 0xa9b35, 0xa9b46, 0xa9b65,
    0xa9ba6, 0xa9bc5, 0xa9be6, 0xa9c17, 0xa9cea, 0xa9cf3, 0xa9d04, 0xa9daa, 0xa9de7, 0xa9e03, 0xa9e55, 0xa9e63, 0xa9f04,
    0xa9fa3, 0xa9ffa, 0xaa003, 0xaa295, 0xaa2f6, 0xaa315, 0xaa336, 0xaa355, 0xaa37a, 0xaa403, 0xaa435, 0xaa443, 0xaa4c5,
    0xaa4d6, 0xaa4ea, 0xaa504, 0xaa5aa, 0xaa5c7, 0xaa603, 0xaa778, 0xaa7a3, 0xaa7b6, 0xaa7c5, 0xaa7d6, 0xaa7e3, 0xaab05,
    0xaab13, 0xaab25, 0xaab53, 0xaab75, 0xaab93, 0xaabe5, 0xaac03, 0xaac15, 0xaac23, 0xaac3a, 0xaadb3, 0xaade7, 0xaae03,
    0xaaeb6, 0xaaec5, 0xaaee6, 0xaaf07, 0xaaf23, 0xaaf56, 0xaaf65, 0xaaf7a, 0xab013, 0xab07a, 0xab093, 0xab0fa, 0xab113,
    0xab17a, 0xab203, 0xab27a, 0xab283, 0xab2fa, 0xab302, 0xab5b8, 0xab5c3, 0xab602, 0xab693, 0xab6a8, 0xab6c1, 0xab6ea,
    0xab702, 0xabc03, 0xabe36, 0xabe55, 0xabe66, 0xabe85, 0xabe96, 0xabeb7, 0xabec6, 0xabed5, 0xabeea, 0xabf04, 0xabfaa,
    0xac003, 0xd7a4a, 0xd7b03, 0xd7c7a, 0xd7cb3, 0xd7fca, 0xd8009, 0xf9003, 0xfa6ea, 0xfa703, 0xfadaa, 0xfb002, 0xfb07a,
    0xfb132, 0xfb18a, 0xfb1d3, 0xfb1e5, 0xfb1f3, 0xfb298, 0xfb2a3, 0xfb37a, 0xfb383, 0xfb3da, 0xfb3e3, 0xfb3fa, 0xfb403,
    0xfb42a, 0xfb433, 0xfb45a, 0xfb463, 0xfbb28, 0xfbd33, 0xfd3e7, 0xfd408, 0xfd503, 0xfd908, 0xfd923, 0xfdc88, 0xfdd0a,
    0xfdf03, 0xfdfc8, 0xfe005, 0xfe107, 0xfe1aa, 0xfe205, 0xfe307, 0xfe53a, 0xfe547, 0xfe628, 0xfe637, 0xfe648, 0xfe67a,
    0xfe687, 0xfe698, 0xfe6a7, 0xfe6ca, 0xfe703, 0xfe75a, 0xfe763, 0xfefda, 0xfeff9, 0xff00a, 0xff017, 0xff048, 0xff057,
    0xff0b8, 0xff0c7, 0xff104, 0xff1a7, 0xff1c8, 0xff1f7, 0xff211, 0xff3b7, 0xff3e8, 0xff3f7, 0xff408, 0xff412, 0xff5b7,
    0xff5c8, 0xff5d7, 0xff5e8, 0xff5f7, 0xff663, 0xffbfa, 0xffc23, 0xffc8a, 0xffca3, 0xffd0a, 0xffd23, 0xffd8a, 0xffda3,
    0xffdda, 0xffe08, 0xffe7a, 0xffe88, 0xffefa, 0xfff99, 0xfffc8, 0xfffea, 0x100003, 0x1000ca, 0x1000d3, 0x10027a,
    0x100283, 0x1003ba, 0x1003c3, 0x1003ea, 0x1003f3, 0x1004ea, 0x100503, 0x1005ea, 0x100803, 0x100fba, 0x101007,
    0x10103a, 0x101074, 0x10134a, 0x101378, 0x101404, 0x101798, 0x1018a4, 0x1018c8, 0x1018fa, 0x101908, 0x1019da,
    0x101a08, 0x101a1a, 0x101d08, 0x101fd5, 0x101fea, 0x102803, 0x1029da, 0x102a03, 0x102d1a, 0x102e05, 0x102e14,
    0x102fca, 0x103003, 0x103204, 0x10324a, 0x1032d3, 0x103414, 0x103423, 0x1034a4, 0x1034ba, 0x103503, 0x103765,
    0x1037ba, 0x103803, 0x1039ea, 0x1039f7, 0x103a03, 0x103c4a, 0x103c83, 0x103d07, 0x103d14, 0x103d6a, 0x104001,
    0x104282, 0x104503, 0x1049ea, 0x104a04, 0x104aaa, 0x104b01, 0x104d4a, 0x104d82, 0x104fca, 0x105003, 0x10528a,
    0x105303, 0x10564a, 0x1056f7, 0x105701, 0x1057ba, 0x1057c1, 0x1058ba, 0x1058c1, 0x10593a, 0x105941, 0x10596a,
    0x105972, 0x105a2a, 0x105a32, 0x105b2a, 0x105b32, 0x105baa, 0x105bb2, 0x105bda, 0x105c03, 0x105f4a, 0x106003,
    0x10737a, 0x107403, 0x10756a, 0x107603, 0x10768a, 0x107803, 0x10786a, 0x107873, 0x107b1a, 0x107b23, 0x107c0a,
    0x108003, 0x10806a, 0x108083, 0x10809a, 0x1080a3, 0x10836a, 0x108373, 0x10839a, 0x1083c3, 0x1083da, 0x1083f3,
    0x10856a, 0x108577, 0x108584, 0x108603, 0x108778, 0x108794, 0x108803, 0x1089fa, 0x108a74, 0x108b0a, 0x108e03,
    0x108f3a, 0x108f43, 0x108f6a, 0x108fb4, 0x109003, 0x109164, 0x1091ca, 0x1091f7, 0x109203, 0x1093aa, 0x1093f7,
    0x109403, 0x1095aa, 0x109803, 0x109b8a, 0x109bc4, 0x109be3, 0x109c04, 0x109d0a, 0x109d24, 0x10a003, 0x10a015,
    0x10a04a, 0x10a055, 0x10a07a, 0x10a0c5, 0x10a103, 0x10a14a, 0x10a153, 0x10a18a, 0x10a193, 0x10a36a, 0x10a385,
    0x10a3ba, 0x10a3f5, 0x10a404, 0x10a49a, 0x10a507, 0x10a59a, 0x10a603, 0x10a7d4, 0x10a7f7, 0x10a803, 0x10a9d4,
    0x10aa0a, 0x10ac03, 0x10ac88, 0x10ac93, 0x10ae55, 0x10ae7a, 0x10aeb4, 0x10af07, 0x10af7a, 0x10b003, 0x10b36a,
    0x10b397, 0x10b403, 0x10b56a, 0x10b584, 0x10b603, 0x10b73a, 0x10b784, 0x10b803, 0x10b92a, 0x10b997, 0x10b9da,
    0x10ba94, 0x10bb0a, 0x10c003, 0x10c49a, 0x10c801, 0x10cb3a, 0x10cc02, 0x10cf3a, 0x10cfa4, 0x10d003, 0x10d245,
    0x10d28a, 0x10d304, 0x10d3aa, 0x10d404, 0x10d4a3, 0x10d501, 0x10d66a, 0x10d695, 0x10d6e7, 0x10d6f3, 0x10d702,
    0x10d86a, 0x10d8e8, 0x10d90a, 0x10e604, 0x10e7fa, 0x10e803, 0x10eaaa, 0x10eab5, 0x10ead7, 0x10eaea, 0x10eb03,
    0x10eb2a, 0x10ec23, 0x10ec8a, 0x10ec98, 0x10ecb5, 0x10ed07, 0x10ed18, 0x10ed93, 0x10eefa, 0x10ef05, 0x10f003,
    0x10f1d4, 0x10f273, 0x10f28a, 0x10f303, 0x10f465, 0x10f514, 0x10f557, 0x10f5aa, 0x10f703, 0x10f825, 0x10f867,
    0x10f8aa, 0x10fb03, 0x10fc54, 0x10fcca, 0x10fe03, 0x10ff7a, 0x110006, 0x110015, 0x110026, 0x110033, 0x110385,
    0x110477, 0x1104ea, 0x110524, 0x110705, 0x110713, 0x110735, 0x110753, 0x11076a, 0x1107f5, 0x110826, 0x110833,
    0x110b06, 0x110b35, 0x110b76, 0x110b95, 0x110bb7, 0x110bd9, 0x110be7, 0x110c25, 0x110c3a, 0x110cd9, 0x110cea,
    0x110d03, 0x110e9a, 0x110f04, 0x110faa, 0x111005, 0x111033, 0x111275, 0x1112c6, 0x1112d5, 0x11135a, 0x111364,
    0x111407, 0x111443, 0x111456, 0x111473, 0x11148a, 0x111503, 0x111735, 0x111747, 0x111763, 0x11177a, 0x111805,
    0x111826, 0x111833, 0x111b36, 0x111b65, 0x111bf6, 0x111c13, 0x111c57, 0x111c95, 0x111cd7, 0x111ce6, 0x111cf5,
    0x111d04, 0x111da3, 0x111db7, 0x111dc3, 0x111dd7, 0x111e0a, 0x111e14, 0x111f5a, 0x112003, 0x11212a, 0x112133,
    0x1122c6, 0x1122f5, 0x112326, 0x112345, 0x112356, 0x112365, 0x112387, 0x1123e5, 0x1123f3, 0x112415, 0x11242a,
    0x112803, 0x11287a, 0x112883, 0x11289a, 0x1128a3, 0x1128ea, 0x1128f3, 0x1129ea, 0x1129f3, 0x112a97, 0x112aaa,
    0x112b03, 0x112df5, 0x112e06, 0x112e35, 0x112eba, 0x112f04, 0x112faa, 0x113005, 0x113026, 0x11304a, 0x113053,
    0x1130da, 0x1130f3, 0x11311a, 0x113133, 0x11329a, 0x1132a3, 0x11331a, 0x113323, 0x11334a, 0x113353, 0x1133aa,
    0x1133b5, 0x1133d3, 0x1133e6, 0x113405, 0x113416, 0x11345a, 0x113476, 0x11349a, 0x1134b6, 0x1134ea, 0x113503,
    0x11351a, 0x113576, 0x11358a, 0x1135d3, 0x113626, 0x11364a, 0x113665, 0x1136da, 0x113705, 0x11375a, 0x113803,
    0x1138aa, 0x1138b3, 0x1138ca, 0x1138e3, 0x1138fa, 0x113903, 0x113b6a, 0x113b73, 0x113b86, 0x113bb5, 0x113c1a,
    0x113c26, 0x113c3a, 0x113c56, 0x113c6a, 0x113c76, 0x113cba, 0x113cc6, 0x113ce5, 0x113cf6, 0x113d05, 0x113d13,
    0x113d25, 0x113d33, 0x113d47, 0x113d6a, 0x113d77, 0x113d9a, 0x113e15, 0x113e3a, 0x114003, 0x114356, 0x114385,
    0x114406, 0x114425, 0x114456, 0x114465, 0x114473, 0x1144b7, 0x114504, 0x1145a7, 0x1145ca, 0x1145d7, 0x1145e5,
    0x1145f3, 0x11462a, 0x114803, 0x114b06, 0x114b35, 0x114b96, 0x114ba5, 0x114bb6, 0x114bf5, 0x114c16, 0x114c25,
    0x114c43, 0x114c67, 0x114c73, 0x114c8a, 0x114d04, 0x114daa, 0x115803, 0x115af6, 0x115b25, 0x115b6a, 0x115b86,
    0x115bc5, 0x115be6, 0x115bf5, 0x115c17, 0x115d83, 0x115dc5, 0x115dea, 0x116003, 0x116306, 0x116335, 0x1163b6,
    0x1163d5, 0x1163e6, 0x1163f5, 0x116417, 0x116443, 0x11645a, 0x116504, 0x1165aa, 0x116607, 0x1166da, 0x116803,
    0x116ab5, 0x116ac6, 0x116ad5, 0x116ae6, 0x116b05, 0x116b66, 0x116b75, 0x116b83, 0x116b97, 0x116baa, 0x116c04,
    0x116caa, 0x116d04, 0x116e4a, 0x117003, 0x1171ba, 0x1171d5, 0x1171e6, 0x1171f5, 0x117206, 0x117225, 0x117266,
    0x117275, 0x1172ca, 0x117304, 0x1173c7, 0x1173f8, 0x117403, 0x11747a, 0x118003, 0x1182c6, 0x1182f5, 0x118386,
    0x118395, 0x1183b7, 0x1183ca, 0x118a01, 0x118c02, 0x118e04, 0x118f3a, 0x118ff3, 0x11907a, 0x119093, 0x1190aa,
    0x1190c3, 0x11914a, 0x119153, 0x11917a, 0x119183, 0x119306, 0x11936a, 0x119376, 0x11939a, 0x1193b5, 0x1193d6,
    0x1193e5, 0x1193f3, 0x119406, 0x119413, 0x119426, 0x119435, 0x119447, 0x11947a, 0x119504, 0x1195aa, 0x119a03,
    0x119a8a, 0x119aa3, 0x119d16, 0x119d45, 0x119d8a, 0x119da5, 0x119dc6, 0x119e05, 0x119e13, 0x119e27, 0x119e33,
    0x119e46, 0x119e5a, 0x11a003, 0x11a015, 0x11a0b3, 0x11a335, 0x11a396, 0x11a3a3, 0x11a3b5, 0x11a3f7, 0x11a475,
    0x11a48a, 0x11a503, 0x11a515, 0x11a576, 0x11a595, 0x11a5c3, 0x11a8a5, 0x11a976, 0x11a985, 0x11a9a7, 0x11a9d3,
    0x11a9e7, 0x11aa3a, 0x11ab03, 0x11af9a, 0x11b007, 0x11b0a3, 0x11b0ba, 0x11b605, 0x11b616, 0x11b625, 0x11b656,
    0x11b665, 0x11b676, 0x11b68a, 0x11bc03, 0x11be17, 0x11be2a, 0x11bf04, 0x11bfaa, 0x11c003, 0x11c09a, 0x11c0a3,
    0x11c2f6, 0x11c305, 0x11c37a, 0x11c385, 0x11c3e6, 0x11c3f5, 0x11c403, 0x11c417, 0x11c46a, 0x11c504, 0x11c6da,
    0x11c707, 0x11c723, 0x11c90a, 0x11c925, 0x11ca8a, 0x11ca96, 0x11caa5, 0x11cb16, 0x11cb25, 0x11cb46, 0x11cb55,
    0x11cb7a, 0x11d003, 0x11d07a, 0x11d083, 0x11d0aa, 0x11d0b3, 0x11d315, 0x11d37a, 0x11d3a5, 0x11d3ba, 0x11d3c5,
    0x11d3ea, 0x11d3f5, 0x11d463, 0x11d475, 0x11d48a, 0x11d504, 0x11d5aa, 0x11d603, 0x11d66a, 0x11d673, 0x11d69a,
    0x11d6a3, 0x11d8a6, 0x11d8fa, 0x11d905, 0x11d92a, 0x11d936, 0x11d955, 0x11d966, 0x11d975, 0x11d983, 0x11d99a,
    0x11da04, 0x11daaa, 0x11db03, 0x11ddca, 0x11de04, 0x11deaa, 0x11df05, 0x11df13, 0x11df2a, 0x11ee03, 0x11ef35,
    0x11ef56, 0x11ef77, 0x11ef9a, 0x11f005, 0x11f023, 0x11f036, 0x11f043, 0x11f11a, 0x11f123, 0x11f346, 0x11f365,
    0x11f3ba, 0x11f3e6, 0x11f405, 0x11f416, 0x11f425, 0x11f437, 0x11f504, 0x11f5a5, 0x11f5ba, 0x11fb03, 0x11fb1a,
    0x11fc04, 0x11fd58, 0x11ff2a, 0x11fff7, 0x120003, 0x1239aa, 0x124004, 0x124707, 0x124754, 0x124803, 0x12544a,
    0x125504, 0x12687a, 0x12f903, 0x12ff17, 0x12ff3a, 0x130003, 0x134309, 0x134405, 0x134413, 0x134475, 0x13456a,
    0x134603, 0x143fba, 0x144003, 0x14647a, 0x161003, 0x1611e5, 0x1612a6, 0x1612d5, 0x161304, 0x1613aa, 0x168003,
    0x16a39a, 0x16a403, 0x16a5fa, 0x16a604, 0x16a6aa, 0x16a6e7, 0x16a703, 0x16abfa, 0x16ac04, 0x16acaa, 0x16ad03,
    0x16aeea, 0x16af05, 0x16af57, 0x16af6a, 0x16b003, 0x16b305, 0x16b377, 0x16b3c8, 0x16b403, 0x16b447, 0x16b458,
    0x16b46a, 0x16b504, 0x16b5aa, 0x16b5b4, 0x16b62a, 0x16b633, 0x16b78a, 0x16b7d3, 0x16b90a, 0x16d403, 0x16d6d7,
    0x16d704, 0x16d7aa, 0x16e401, 0x16e602, 0x16e804, 0x16e977, 0x16e9ba, 0x16ea01, 0x16eb9a, 0x16ebb2, 0x16ed4a,
    0x16f003, 0x16f4ba, 0x16f4f5, 0x16f503, 0x16f516, 0x16f88a, 0x16f8f5, 0x16f933, 0x16fa0a, 0x16fe03, 0x16fe27,
    0x16fe33, 0x16fe45, 0x16fe5a, 0x16ff06, 0x16ff23, 0x16ff44, 0x16ff7a, 0x170003, 0x18cdba, 0x18cff3, 0x18d21a,
    0x18d803, 0x18df3a, 0x18e003, 0x19192a, 0x191a03, 0x191d3a, 0x1aff03, 0x1aff4a, 0x1aff53, 0x1affca, 0x1affd3,
    0x1afffa, 0x1b0003, 0x1b129a, 0x1b1323, 0x1b133a, 0x1b1503, 0x1b153a, 0x1b1553, 0x1b156a, 0x1b1643, 0x1b169a,
    0x1b1703, 0x1b2fca, 0x1bc003, 0x1bc6ba, 0x1bc703, 0x1bc7da, 0x1bc803, 0x1bc89a, 0x1bc903, 0x1bc9aa, 0x1bc9c8,
    0x1bc9d5, 0x1bc9f7, 0x1bca09, 0x1bca4a, 0x1cc008, 0x1ccf04, 0x1ccfa8, 0x1ccfda, 0x1cd008, 0x1ceb4a, 0x1ceba8,
    0x1ced1a, 0x1ced28, 0x1ced5a, 0x1cedd8, 0x1cefea, 0x1cf005, 0x1cf2ea, 0x1cf305, 0x1cf47a, 0x1cf508, 0x1cfc4a,
    0x1d0008, 0x1d0f6a, 0x1d1008, 0x1d1275, 0x1d1298, 0x1d1656, 0x1d1675, 0x1d16a8, 0x1d16d6, 0x1d1739, 0x1d17b5,
    0x1d1838, 0x1d1855, 0x1d18c8, 0x1d1aa5, 0x1d1ae8, 0x1d2425, 0x1d2458, 0x1d246a, 0x1d2506, 0x1d2538, 0x1d25b5,
    0x1d25d8, 0x1d25f6, 0x1d2608, 0x1d2806, 0x1d282a, 0x1d2c04, 0x1d2d4a, 0x1d2e04, 0x1d2f4a, 0x1d3008, 0x1d357a,
    0x1d3604, 0x1d379a, 0x1d4001, 0x1d41a2, 0x1d4341, 0x1d44e2, 0x1d455a, 0x1d4562, 0x1d4681, 0x1d4822, 0x1d49c1,
    0x1d49da, 0x1d49e1, 0x1d4a0a, 0x1d4a21, 0x1d4a3a, 0x1d4a51, 0x1d4a7a, 0x1d4a91, 0x1d4ada, 0x1d4ae1, 0x1d4b62,
    0x1d4baa, 0x1d4bb2, 0x1d4bca, 0x1d4bd2, 0x1d4c4a, 0x1d4c52, 0x1d4d01, 0x1d4ea2, 0x1d5041, 0x1d506a, 0x1d5071,
    0x1d50ba, 0x1d50d1, 0x1d515a, 0x1d5161, 0x1d51da, 0x1d51e2, 0x1d5381, 0x1d53aa, 0x1d53b1, 0x1d53fa, 0x1d5401,
    0x1d545a, 0x1d5461, 0x1d547a, 0x1d54a1, 0x1d551a, 0x1d5522, 0x1d56c1, 0x1d5862, 0x1d5a01, 0x1d5ba2, 0x1d5d41,
    0x1d5ee2, 0x1d6081, 0x1d6222, 0x1d63c1, 0x1d6562, 0x1d6701, 0x1d68a2, 0x1d6a7a, 0x1d6a81, 0x1d6c18, 0x1d6c22,
    0x1d6db8, 0x1d6dc2, 0x1d6e21, 0x1d6fb8, 0x1d6fc2, 0x1d7158, 0x1d7162, 0x1d71c1, 0x1d7358, 0x1d7362, 0x1d74f8,
    0x1d7502, 0x1d7561, 0x1d76f8, 0x1d7702, 0x1d7898, 0x1d78a2, 0x1d7901, 0x1d7a98, 0x1d7aa2, 0x1d7c38, 0x1d7c42,
    0x1d7ca1, 0x1d7cb2, 0x1d7cca, 0x1d7ce4, 0x1d8008, 0x1da005, 0x1da378, 0x1da3b5, 0x1da6d8, 0x1da755, 0x1da768,
    0x1da845, 0x1da858, 0x1da877, 0x1da8ca, 0x1da9b5, 0x1daa0a, 0x1daa15, 0x1dab0a, 0x1db008, 0x1db1da, 0x1df002,
    0x1df0a3, 0x1df0b2, 0x1df401, 0x1df412, 0x1df48b, 0x1df4c2, 0x1df4d1, 0x1df4e2, 0x1df511, 0x1df522, 0x1df68b,
    0x1df702, 0x1df72b, 0x1df803, 0x1df82a, 0x1df902, 0x1df97a, 0x1dfcd3, 0x1e0005, 0x1e007a, 0x1e0085, 0x1e019a,
    0x1e01b5, 0x1e022a, 0x1e0235, 0x1e025a, 0x1e0265, 0x1e02ba, 0x1e0303, 0x1e06ea, 0x1e08f5, 0x1e090a, 0x1e1003,
    0x1e12da, 0x1e1305, 0x1e1373, 0x1e13ea, 0x1e1404, 0x1e14aa, 0x1e14e3, 0x1e14f8, 0x1e150a, 0x1e2903, 0x1e2ae5,
    0x1e2afa, 0x1e2c03, 0x1e2ec5, 0x1e2f04, 0x1e2faa, 0x1e2ff8, 0x1e300a, 0x1e4d03, 0x1e4ec5, 0x1e4f04, 0x1e4faa,
    0x1e5d03, 0x1e5ee5, 0x1e5f03, 0x1e5f14, 0x1e5fba, 0x1e5ff7, 0x1e600a, 0x1e6c03, 0x1e6dfa, 0x1e6e03, 0x1e6e35,
    0x1e6e43, 0x1e6e65, 0x1e6e73, 0x1e6ee5, 0x1e6f03, 0x1e6f55, 0x1e6f6a, 0x1e6fe3, 0x1e700a, 0x1e7e03, 0x1e7e7a,
    0x1e7e83, 0x1e7eca, 0x1e7ed3, 0x1e7efa, 0x1e7f03, 0x1e7ffa, 0x1e8003, 0x1e8c5a, 0x1e8c74, 0x1e8d05, 0x1e8d7a,
    0x1e9001, 0x1e9222, 0x1e9445, 0x1e94b3, 0x1e94ca, 0x1e9504, 0x1e95aa, 0x1e95e7, 0x1e960a, 0x1ec714, 0x1ecac8,
    0x1ecad4, 0x1ecb08, 0x1ecb14, 0x1ecb5a, 0x1ed014, 0x1ed2e8, 0x1ed2f4, 0x1ed3ea, 0x1ee003, 0x1ee04a, 0x1ee053,
    0x1ee20a, 0x1ee213, 0x1ee23a, 0x1ee243, 0x1ee25a, 0x1ee273, 0x1ee28a, 0x1ee293, 0x1ee33a, 0x1ee343, 0x1ee38a,
    0x1ee393, 0x1ee3aa, 0x1ee3b3, 0x1ee3ca, 0x1ee423, 0x1ee43a, 0x1ee473, 0x1ee48a, 0x1ee493, 0x1ee4aa, 0x1ee4b3,
    0x1ee4ca, 0x1ee4d3, 0x1ee50a, 0x1ee513, 0x1ee53a, 0x1ee543, 0x1ee55a, 0x1ee573, 0x1ee58a, 0x1ee593, 0x1ee5aa,
    0x1ee5b3, 0x1ee5ca, 0x1ee5d3, 0x1ee5ea, 0x1ee5f3, 0x1ee60a, 0x1ee613, 0x1ee63a, 0x1ee643, 0x1ee65a, 0x1ee673,
    0x1ee6ba, 0x1ee6c3, 0x1ee73a, 0x1ee743, 0x1ee78a, 0x1ee793, 0x1ee7da, 0x1ee7e3, 0x1ee7fa, 0x1ee803, 0x1ee8aa,
    0x1ee8b3, 0x1ee9ca, 0x1eea13, 0x1eea4a, 0x1eea53, 0x1eeaaa, 0x1eeab3, 0x1eebca, 0x1eef08, 0x1eef2a, 0x1f0008,
    0x1f02ca, 0x1f0308, 0x1f094a, 0x1f0a08, 0x1f0afa, 0x1f0b18, 0x1f0c0a, 0x1f0c18, 0x1f0d0a, 0x1f0d18, 0x1f0f6a,
    0x1f1004, 0x1f10d8, 0x1f1afa, 0x1f1e68, 0x1f203a, 0x1f2108, 0x1f23ca, 0x1f2408, 0x1f249a, 0x1f2508, 0x1f252a,
    0x1f2608, 0x1f266a, 0x1f3008, 0x1f6daa, 0x1f6dc8, 0x1f6eda, 0x1f6f08, 0x1f6fda, 0x1f7008, 0x1f7dca, 0x1f7e08,
    0x1f7eca, 0x1f7f08, 0x1f80ca, 0x1f8108, 0x1f848a, 0x1f8508, 0x1f85aa, 0x1f8608, 0x1f888a, 0x1f8908, 0x1f8aea,
    0x1f8b08, 0x1f8bca, 0x1f8c08, 0x1f8c2a, 0x1f8d08, 0x1f8d9a, 0x1f9008, 0x1fa58a, 0x1fa608, 0x1fa6ea, 0x1fa708,
    0x1fa7da, 0x1fa808, 0x1fac7a, 0x1fac88, 0x1fac9a, 0x1facc8, 0x1fadea, 0x1fadf8, 0x1faeca, 0x1faef8, 0x1fafba,
    0x1fb008, 0x1fb93a, 0x1fb948, 0x1fbf04, 0x1fbfa8, 0x1fbfba, 0x200003, 0x2a6e0a, 0x2a7003, 0x2b81fa, 0x2b8203,
    0x2ceaea, 0x2ceb03, 0x2ebe1a, 0x2ebf03, 0x2ee5ea, 0x2f8003, 0x2fa1ea, 0x300003, 0x3134ba, 0x313503, 0x3347aa,
    0x3d0003, 0x3fc40a, 0xe00019, 0xe0002a, 0xe00209, 0xe0080a, 0xe01005, 0xe01f0a, 0xf00009, 0xffffea, 0x1000009,
    0x10fffea,
};

// every step-th code point from first to last; its lower case is delta higher
struct llmi_uc_lower_run { uint32_t first; uint32_t last; uint32_t step; int32_t delta; };
static const struct llmi_uc_lower_run llmi_uc_lower_runs[182] = {
    {0x41,0x5a,1,32}, {0xc0,0xd6,1,32}, {0xd8,0xde,1,32}, {0x100,0x12e,2,1}, {0x130,0x130,1,-199}, {0x132,0x136,2,1},
    {0x139,0x147,2,1}, {0x14a,0x176,2,1}, {0x178,0x178,1,-121}, {0x179,0x17d,2,1}, {0x181,0x181,1,210},
    {0x182,0x184,2,1}, {0x186,0x186,1,206}, {0x187,0x187,1,1}, {0x189,0x18a,1,205}, {0x18b,0x18b,1,1},
    {0x18e,0x18e,1,79}, {0x18f,0x18f,1,202}, {0x190,0x190,1,203}, {0x191,0x191,1,1}, {0x193,0x193,1,205},
    {0x194,0x194,1,207}, {0x196,0x196,1,211}, {0x197,0x197,1,209}, {0x198,0x198,1,1}, {0x19c,0x19c,1,211},
    {0x19d,0x19d,1,213}, {0x19f,0x19f,1,214}, {0x1a0,0x1a4,2,1}, {0x1a6,0x1a6,1,218}, {0x1a7,0x1a7,1,1},
    {0x1a9,0x1a9,1,218}, {0x1ac,0x1ac,1,1}, {0x1ae,0x1ae,1,218}, {0x1af,0x1af,1,1}, {0x1b1,0x1b2,1,217},
    {0x1b3,0x1b5,2,1}, {0x1b7,0x1b7,1,219}, {0x1b8,0x1b8,1,1}, {0x1bc,0x1bc,1,1}, {0x1c4,0x1c4,1,2}, {0x1c5,0x1c5,1,1},
    {0x1c7,0x1c7,1,2}, {0x1c8,0x1c8,1,1}, {0x1ca,0x1ca,1,2}, {0x1cb,0x1db,2,1}, {0x1de,0x1ee,2,1}, {0x1f1,0x1f1,1,2},
    {0x1f2,0x1f4,2,1}, {0x1f6,0x1f6,1,-97}, {0x1f7,0x1f7,1,-56}, {0x1f8,0x21e,2,1}, {0x220,0x220,1,-130},
    {0x222,0x232,2,1}, {0x23a,0x23a,1,10795}, {0x23b,0x23b,1,1}, {0x23d,0x23d,1,-163}, {0x23e,0x23e,1,10792},
    {0x241,0x241,1,1}, {0x243,0x243,1,-195}, {0x244,0x244,1,69}, {0x245,0x245,1,71}, {0x246,0x24e,2,1},
    {0x370,0x372,2,1}, {0x376,0x376,1,1}, {0x37f,0x37f,1,116}, {0x386,0x386,1,38}, {0x388,0x38a,1,37},
    {0x38c,0x38c,1,64}, {0x38e,0x38f,1,63}, {0x391,0x3a1,1,32}, {0x3a3,0x3ab,1,32}, {0x3cf,0x3cf,1,8},
    {0x3d8,0x3ee,2,1}, {0x3f4,0x3f4,1,-60}, {0x3f7,0x3f7,1,1}, {0x3f9,0x3f9,1,-7}, {0x3fa,0x3fa,1,1},
    {0x3fd,0x3ff,1,-130}, {0x400,0x40f,1,80}, {0x410,0x42f,1,32}, {0x460,0x480,2,1}, {0x48a,0x4be,2,1},
    {0x4c0,0x4c0,1,15}, {0x4c1,0x4cd,2,1}, {0x4d0,0x52e,2,1}, {0x531,0x556,1,48}, {0x10a0,0x10c5,1,7264},
    {0x10c7,0x10c7,1,7264}, {0x10cd,0x10cd,1,7264}, {0x13a0,0x13ef,1,38864}, {0x13f0,0x13f5,1,8},
    {0x1c90,0x1cba,1,-3008}, {0x1cbd,0x1cbf,1,-3008}, {0x1e00,0x1e94,2,1}, {0x1e9e,0x1e9e,1,-7615}, {0x1ea0,0x1efe,2,1},
    {0x1f08,0x1f0f,1,-8}, {0x1f18,0x1f1d,1,-8}, {0x1f28,0x1f2f,1,-8}, {0x1f38,0x1f3f,1,-8}, {0x1f48,0x1f4d,1,-8},
    {0x1f59,0x1f5f,2,-8}, {0x1f68,0x1f6f,1,-8}, {0x1f88,0x1f8f,1,-8}, {0x1f98,0x1f9f,1,-8}, {0x1fa8,0x1faf,1,-8},
    {0x1fb8,0x1fb9,1,-8}, {0x1fba,0x1fbb,1,-74}, {0x1fbc,0x1fbc,1,-9}, {0x1fc8,0x1fcb,1,-86}, {0x1fcc,0x1fcc,1,-9},
    {0x1fd8,0x1fd9,1,-8}, {0x1fda,0x1fdb,1,-100}, {0x1fe8,0x1fe9,1,-8}, {0x1fea,0x1feb,1,-112}, {0x1fec,0x1fec,1,-7},
    {0x1ff8,0x1ff9,1,-128}, {0x1ffa,0x1ffb,1,-126}, {0x1ffc,0x1ffc,1,-9}, {0x2126,0x2126,1,-7517},
    {0x212a,0x212a,1,-8383}, {0x212b,0x212b,1,-8262}, {0x2132,0x2132,1,28}, {0x2160,0x216f,1,16}, {0x2183,0x2183,1,1},
    {0x24b6,0x24cf,1,26}, {0x2c00,0x2c2f,1,48}, {0x2c60,0x2c60,1,1}, {0x2c62,0x2c62,1,-10743}, {0x2c63,0x2c63,1,-3814},
    {0x2c64,0x2c64,1,-10727}, {0x2c67,0x2c6b,2,1}, {0x2c6d,0x2c6d,1,-10780}, {0x2c6e,0x2c6e,1,-10749},
    {0x2c6f,0x2c6f,1,-10783}, {0x2c70,0x2c70,1,-10782}, {0x2c72,0x2c72,1,1}, {0x2c75,0x2c75,1,1},
    {0x2c7e,0x2c7f,1,-10815}, {0x2c80,0x2ce2,2,1}, {0x2ceb,0x2ced,2,1}, {0x2cf2,0x2cf2,1,1}, {0xa640,0xa66c,2,1},
    {0xa680,0xa69a,2,1}, {0xa722,0xa72e,2,1}, {0xa732,0xa76e,2,1}, {0xa779,0xa77b,2,1}, {0xa77d,0xa77d,1,-35332},
    {0xa77e,0xa786,2,1}, {0xa78b,0xa78b,1,1}, {0xa78d,0xa78d,1,-42280}, {0xa790,0xa792,2,1}, {0xa796,0xa7a8,2,1},
    {0xa7aa,0xa7aa,1,-42308}, {0xa7ab,0xa7ab,1,-42319}, {0xa7ac,0xa7ac,1,-42315}, {0xa7ad,0xa7ad,1,-42305},
    {0xa7ae,0xa7ae,1,-42308}, {0xa7b0,0xa7b0,1,-42258}, {0xa7b1,0xa7b1,1,-42282}, {0xa7b2,0xa7b2,1,-42261},
    {0xa7b3,0xa7b3,1,928}, {0xa7b4,0xa7c2,2,1}, {0xa7c4,0xa7c4,1,-48}, {0xa7c5,0xa7c5,1,-42307},
    {0xa7c6,0xa7c6,1,-35384}, {0xa7c7,0xa7c9,2,1}, {0xa7d0,0xa7d0,1,1}, {0xa7d6,0xa7d8,2,1}, {0xa7f5,0xa7f5,1,1},
    {0xff21,0xff3a,1,32}, {0x10400,0x10427,1,40}, {0x104b0,0x104d3,1,40}, {0x10570,0x1057a,1,39},
    {0x1057c,0x1058a,1,39}, {0x1058c,0x10592,1,39}, {0x10594,0x10595,1,39}, {0x10c80,0x10cb2,1,64},
    {0x118a0,0x118bf,1,32}, {0x16e40,0x16e5f,1,32}, {0x1e900,0x1e921,1,34},
};

#define LLMI_UC_MAX_PARTS 3
// first and last code point of a run, base letter of all of them
static const uint32_t llmi_uc_strip_runs[770][3] = {
    {0xc0,0xc5,0x41}, {0xc7,0xc7,0x43}, {0xc8,0xcb,0x45}, {0xcc,0xcf,0x49}, {0xd1,0xd1,0x4e}, {0xd2,0xd6,0x4f},
    {0xd9,0xdc,0x55}, {0xdd,0xdd,0x59}, {0xe0,0xe5,0x61}, {0xe7,0xe7,0x63}, {0xe8,0xeb,0x65}, {0xec,0xef,0x69},
    {0xf1,0xf1,0x6e}, {0xf2,0xf6,0x6f}, {0xf9,0xfc,0x75}, {0xfd,0xfd,0x79}, {0xff,0xff,0x79}, {0x100,0x100,0x41},
    {0x101,0x101,0x61}, {0x102,0x102,0x41}, {0x103,0x103,0x61}, {0x104,0x104,0x41}, {0x105,0x105,0x61},
    {0x106,0x106,0x43}, {0x107,0x107,0x63}, {0x108,0x108,0x43}, {0x109,0x109,0x63}, {0x10a,0x10a,0x43},
    {0x10b,0x10b,0x63}, {0x10c,0x10c,0x43}, {0x10d,0x10d,0x63}, {0x10e,0x10e,0x44}, {0x10f,0x10f,0x64},
    {0x112,0x112,0x45}, {0x113,0x113,0x65}, {0x114,0x114,0x45}, {0x115,0x115,0x65}, {0x116,0x116,0x45},
    {0x117,0x117,0x65}, {0x118,0x118,0x45}, {0x119,0x119,0x65}, {0x11a,0x11a,0x45}, {0x11b,0x11b,0x65},
    {0x11c,0x11c,0x47}, {0x11d,0x11d,0x67}, {0x11e,0x11e,0x47}, {0x11f,0x11f,0x67}, {0x120,0x120,0x47},
    {0x121,0x121,0x67}, {0x122,0x122,0x47}, {0x123,0x123,0x67}, {0x124,0x124,0x48}, {0x125,0x125,0x68},
    {0x128,0x128,0x49}, {0x129,0x129,0x69}, {0x12a,0x12a,0x49}, {0x12b,0x12b,0x69}, {0x12c,0x12c,0x49},
    {0x12d,0x12d,0x69}, {0x12e,0x12e,0x49}, {0x12f,0x12f,0x69}, {0x130,0x130,0x49}, {0x134,0x134,0x4a},
    {0x135,0x135,0x6a}, {0x136,0x136,0x4b}, {0x137,0x137,0x6b}, {0x139,0x139,0x4c}, {0x13a,0x13a,0x6c},
    {0x13b,0x13b,0x4c}, {0x13c,0x13c,0x6c}, {0x13d,0x13d,0x4c}, {0x13e,0x13e,0x6c}, {0x143,0x143,0x4e},
    {0x144,0x144,0x6e}, {0x145,0x145,0x4e}, {0x146,0x146,0x6e}, {0x147,0x147,0x4e}, {0x148,0x148,0x6e},
    {0x14c,0x14c,0x4f}, {0x14d,0x14d,0x6f}, {0x14e,0x14e,0x4f}, {0x14f,0x14f,0x6f}, {0x150,0x150,0x4f},
    {0x151,0x151,0x6f}, {0x154,0x154,0x52}, {0x155,0x155,0x72}, {0x156,0x156,0x52}, {0x157,0x157,0x72},
    {0x158,0x158,0x52}, {0x159,0x159,0x72}, {0x15a,0x15a,0x53}, {0x15b,0x15b,0x73}, {0x15c,0x15c,0x53},
    {0x15d,0x15d,0x73}, {0x15e,0x15e,0x53}, {0x15f,0x15f,0x73}, {0x160,0x160,0x53}, {0x161,0x161,0x73},
    {0x162,0x162,0x54}, {0x163,0x163,0x74}, {0x164,0x164,0x54}, {0x165,0x165,0x74}, {0x168,0x168,0x55},
    {0x169,0x169,0x75}, {0x16a,0x16a,0x55}, {0x16b,0x16b,0x75}, {0x16c,0x16c,0x55}, {0x16d,0x16d,0x75},
    {0x16e,0x16e,0x55}, {0x16f,0x16f,0x75}, {0x170,0x170,0x55}, {0x171,0x171,0x75}, {0x172,0x172,0x55},
    {0x173,0x173,0x75}, {0x174,0x174,0x57}, {0x175,0x175,0x77}, {0x176,0x176,0x59}, {0x177,0x177,0x79},
    {0x178,0x178,0x59}, {0x179,0x179,0x5a}, {0x17a,0x17a,0x7a}, {0x17b,0x17b,0x5a}, {0x17c,0x17c,0x7a},
    {0x17d,0x17d,0x5a}, {0x17e,0x17e,0x7a}, {0x1a0,0x1a0,0x4f}, {0x1a1,0x1a1,0x6f}, {0x1af,0x1af,0x55},
    {0x1b0,0x1b0,0x75}, {0x1cd,0x1cd,0x41}, {0x1ce,0x1ce,0x61}, {0x1cf,0x1cf,0x49}, {0x1d0,0x1d0,0x69},
    {0x1d1,0x1d1,0x4f}, {0x1d2,0x1d2,0x6f}, {0x1d3,0x1d3,0x55}, {0x1d4,0x1d4,0x75}, {0x1d5,0x1d5,0x55},
    {0x1d6,0x1d6,0x75}, {0x1d7,0x1d7,0x55}, {0x1d8,0x1d8,0x75}, {0x1d9,0x1d9,0x55}, {0x1da,0x1da,0x75},
    {0x1db,0x1db,0x55}, {0x1dc,0x1dc,0x75}, {0x1de,0x1de,0x41}, {0x1df,0x1df,0x61}, {0x1e0,0x1e0,0x41},
    {0x1e1,0x1e1,0x61}, {0x1e2,0x1e2,0xc6}, {0x1e3,0x1e3,0xe6}, {0x1e6,0x1e6,0x47}, {0x1e7,0x1e7,0x67},
    {0x1e8,0x1e8,0x4b}, {0x1e9,0x1e9,0x6b}, {0x1ea,0x1ea,0x4f}, {0x1eb,0x1eb,0x6f}, {0x1ec,0x1ec,0x4f},
    {0x1ed,0x1ed,0x6f}, {0x1ee,0x1ee,0x1b7}, {0x1ef,0x1ef,0x292}, {0x1f0,0x1f0,0x6a}, {0x1f4,0x1f4,0x47},
    {0x1f5,0x1f5,0x67}, {0x1f8,0x1f8,0x4e}, {0x1f9,0x1f9,0x6e}, {0x1fa,0x1fa,0x41}, {0x1fb,0x1fb,0x61},
    {0x1fc,0x1fc,0xc6}, {0x1fd,0x1fd,0xe6}, {0x1fe,0x1fe,0xd8}, {0x1ff,0x1ff,0xf8}, {0x200,0x200,0x41},
    {0x201,0x201,0x61}, {0x202,0x202,0x41}, {0x203,0x203,0x61}, {0x204,0x204,0x45}, {0x205,0x205,0x65},
    {0x206,0x206,0x45}, {0x207,0x207,0x65}, {0x208,0x208,0x49}, {0x209,0x209,0x69}, {0x20a,0x20a,0x49},
    {0x20b,0x20b,0x69}, {0x20c,0x20c,0x4f}, {0x20d,0x20d,0x6f}, {0x20e,0x20e,0x4f}, {0x20f,0x20f,0x6f},
    {0x210,0x210,0x52}, {0x211,0x211,0x72}, {0x212,0x212,0x52}, {0x213,0x213,0x72}, {0x214,0x214,0x55},
    {0x215,0x215,0x75}, {0x216,0x216,0x55}, {0x217,0x217,0x75}, {0x218,0x218,0x53}, {0x219,0x219,0x73},
    {0x21a,0x21a,0x54}, {0x21b,0x21b,0x74}, {0x21e,0x21e,0x48}, {0x21f,0x21f,0x68}, {0x226,0x226,0x41},
    {0x227,0x227,0x61}, {0x228,0x228,0x45}, {0x229,0x229,0x65}, {0x22a,0x22a,0x4f}, {0x22b,0x22b,0x6f},
    {0x22c,0x22c,0x4f}, {0x22d,0x22d,0x6f}, {0x22e,0x22e,0x4f}, {0x22f,0x22f,0x6f}, {0x230,0x230,0x4f},
    {0x231,0x231,0x6f}, {0x232,0x232,0x59}, {0x233,0x233,0x79}, {0x374,0x374,0x2b9}, {0x37e,0x37e,0x3b},
    {0x385,0x385,0xa8}, {0x386,0x386,0x391}, {0x387,0x387,0xb7}, {0x388,0x388,0x395}, {0x389,0x389,0x397},
    {0x38a,0x38a,0x399}, {0x38c,0x38c,0x39f}, {0x38e,0x38e,0x3a5}, {0x38f,0x38f,0x3a9}, {0x390,0x390,0x3b9},
    {0x3aa,0x3aa,0x399}, {0x3ab,0x3ab,0x3a5}, {0x3ac,0x3ac,0x3b1}, {0x3ad,0x3ad,0x3b5}, {0x3ae,0x3ae,0x3b7},
    {0x3af,0x3af,0x3b9}, {0x3b0,0x3b0,0x3c5}, {0x3ca,0x3ca,0x3b9}, {0x3cb,0x3cb,0x3c5}, {0x3cc,0x3cc,0x3bf},
    {0x3cd,0x3cd,0x3c5}, {0x3ce,0x3ce,0x3c9}, {0x3d3,0x3d4,0x3d2}, {0x400,0x401,0x415}, {0x403,0x403,0x413},
    {0x407,0x407,0x406}, {0x40c,0x40c,0x41a}, {0x40d,0x40d,0x418}, {0x40e,0x40e,0x423}, {0x419,0x419,0x418},
    {0x439,0x439,0x438}, {0x450,0x451,0x435}, {0x453,0x453,0x433}, {0x457,0x457,0x456}, {0x45c,0x45c,0x43a},
    {0x45d,0x45d,0x438}, {0x45e,0x45e,0x443}, {0x476,0x476,0x474}, {0x477,0x477,0x475}, {0x4c1,0x4c1,0x416},
    {0x4c2,0x4c2,0x436}, {0x4d0,0x4d0,0x410}, {0x4d1,0x4d1,0x430}, {0x4d2,0x4d2,0x410}, {0x4d3,0x4d3,0x430},
    {0x4d6,0x4d6,0x415}, {0x4d7,0x4d7,0x435}, {0x4da,0x4da,0x4d8}, {0x4db,0x4db,0x4d9}, {0x4dc,0x4dc,0x416},
    {0x4dd,0x4dd,0x436}, {0x4de,0x4de,0x417}, {0x4df,0x4df,0x437}, {0x4e2,0x4e2,0x418}, {0x4e3,0x4e3,0x438},
    {0x4e4,0x4e4,0x418}, {0x4e5,0x4e5,0x438}, {0x4e6,0x4e6,0x41e}, {0x4e7,0x4e7,0x43e}, {0x4ea,0x4ea,0x4e8},
    {0x4eb,0x4eb,0x4e9}, {0x4ec,0x4ec,0x42d}, {0x4ed,0x4ed,0x44d}, {0x4ee,0x4ee,0x423}, {0x4ef,0x4ef,0x443},
    {0x4f0,0x4f0,0x423}, {0x4f1,0x4f1,0x443}, {0x4f2,0x4f2,0x423}, {0x4f3,0x4f3,0x443}, {0x4f4,0x4f4,0x427},
    {0x4f5,0x4f5,0x447}, {0x4f8,0x4f8,0x42b}, {0x4f9,0x4f9,0x44b}, {0x622,0x623,0x627}, {0x624,0x624,0x648},
    {0x625,0x625,0x627}, {0x626,0x626,0x64a}, {0x6c0,0x6c0,0x6d5}, {0x6c2,0x6c2,0x6c1}, {0x6d3,0x6d3,0x6d2},
    {0x929,0x929,0x928}, {0x931,0x931,0x930}, {0x934,0x934,0x933}, {0x958,0x958,0x915}, {0x959,0x959,0x916},
    {0x95a,0x95a,0x917}, {0x95b,0x95b,0x91c}, {0x95c,0x95c,0x921}, {0x95d,0x95d,0x922}, {0x95e,0x95e,0x92b},
    {0x95f,0x95f,0x92f}, {0x9dc,0x9dc,0x9a1}, {0x9dd,0x9dd,0x9a2}, {0x9df,0x9df,0x9af}, {0xa33,0xa33,0xa32},
    {0xa36,0xa36,0xa38}, {0xa59,0xa59,0xa16}, {0xa5a,0xa5a,0xa17}, {0xa5b,0xa5b,0xa1c}, {0xa5e,0xa5e,0xa2b},
    {0xb48,0xb48,0xb47}, {0xb5c,0xb5c,0xb21}, {0xb5d,0xb5d,0xb22}, {0xcc0,0xcc0,0xcd5}, {0xcc7,0xcc7,0xcd5},
    {0xcc8,0xcc8,0xcd6}, {0xcca,0xcca,0xcc2}, {0xdda,0xdda,0xdd9}, {0xf43,0xf43,0xf42}, {0xf4d,0xf4d,0xf4c},
    {0xf52,0xf52,0xf51}, {0xf57,0xf57,0xf56}, {0xf5c,0xf5c,0xf5b}, {0xf69,0xf69,0xf40}, {0x1026,0x1026,0x1025},
    {0x1b3b,0x1b3b,0x1b35}, {0x1b3d,0x1b3d,0x1b35}, {0x1b43,0x1b43,0x1b35}, {0x1e00,0x1e00,0x41}, {0x1e01,0x1e01,0x61},
    {0x1e02,0x1e02,0x42}, {0x1e03,0x1e03,0x62}, {0x1e04,0x1e04,0x42}, {0x1e05,0x1e05,0x62}, {0x1e06,0x1e06,0x42},
    {0x1e07,0x1e07,0x62}, {0x1e08,0x1e08,0x43}, {0x1e09,0x1e09,0x63}, {0x1e0a,0x1e0a,0x44}, {0x1e0b,0x1e0b,0x64},
    {0x1e0c,0x1e0c,0x44}, {0x1e0d,0x1e0d,0x64}, {0x1e0e,0x1e0e,0x44}, {0x1e0f,0x1e0f,0x64}, {0x1e10,0x1e10,0x44},
    {0x1e11,0x1e11,0x64}, {0x1e12,0x1e12,0x44}, {0x1e13,0x1e13,0x64}, {0x1e14,0x1e14,0x45}, {0x1e15,0x1e15,0x65},
    {0x1e16,0x1e16,0x45}, {0x1e17,0x1e17,0x65}, {0x1e18,0x1e18,0x45}, {0x1e19,0x1e19,0x65}, {0x1e1a,0x1e1a,0x45},
    {0x1e1b,0x1e1b,0x65}, {0x1e1c,0x1e1c,0x45}, {0x1e1d,0x1e1d,0x65}, {0x1e1e,0x1e1e,0x46}, {0x1e1f,0x1e1f,0x66},
    {0x1e20,0x1e20,0x47}, {0x1e21,0x1e21,0x67}, {0x1e22,0x1e22,0x48}, {0x1e23,0x1e23,0x68}, {0x1e24,0x1e24,0x48},
    {0x1e25,0x1e25,0x68}, {0x1e26,0x1e26,0x48}, {0x1e27,0x1e27,0x68}, {0x1e28,0x1e28,0x48}, {0x1e29,0x1e29,0x68},
    {0x1e2a,0x1e2a,0x48}, {0x1e2b,0x1e2b,0x68}, {0x1e2c,0x1e2c,0x49}, {0x1e2d,0x1e2d,0x69}, {0x1e2e,0x1e2e,0x49},
    {0x1e2f,0x1e2f,0x69}, {0x1e30,0x1e30,0x4b}, {0x1e31,0x1e31,0x6b}, {0x1e32,0x1e32,0x4b}, {0x1e33,0x1e33,0x6b},
    {0x1e34,0x1e34,0x4b}, {0x1e35,0x1e35,0x6b}, {0x1e36,0x1e36,0x4c}, {0x1e37,0x1e37,0x6c}, {0x1e38,0x1e38,0x4c},
    {0x1e39,0x1e39,0x6c}, {0x1e3a,0x1e3a,0x4c}, {0x1e3b,0x1e3b,0x6c}, {0x1e3c,0x1e3c,0x4c}, {0x1e3d,0x1e3d,0x6c},
    {0x1e3e,0x1e3e,0x4d}, {0x1e3f,0x1e3f,0x6d}, {0x1e40,0x1e40,0x4d}, {0x1e41,0x1e41,0x6d}, {0x1e42,0x1e42,0x4d},
    {0x1e43,0x1e43,0x6d}, {0x1e44,0x1e44,0x4e}, {0x1e45,0x1e45,0x6e}, {0x1e46,0x1e46,0x4e}, {0x1e47,0x1e47,0x6e},
    {0x1e48,0x1e48,0x4e}, {0x1e49,0x1e49,0x6e}, {0x1e4a,0x1e4a,0x4e}, {0x1e4b,0x1e4b,0x6e}, {0x1e4c,0x1e4c,0x4f},
    {0x1e4d,0x1e4d,0x6f}, {0x1e4e,0x1e4e,0x4f}, {0x1e4f,0x1e4f,0x6f}, {0x1e50,0x1e50,0x4f}, {0x1e51,0x1e51,0x6f},
    {0x1e52,0x1e52,0x4f}, {0x1e53,0x1e53,0x6f}, {0x1e54,0x1e54,0x50}, {0x1e55,0x1e55,0x70}, {0x1e56,0x1e56,0x50},
    {0x1e57,0x1e57,0x70}, {0x1e58,0x1e58,0x52}, {0x1e59,0x1e59,0x72}, {0x1e5a,0x1e5a,0x52}, {0x1e5b,0x1e5b,0x72},
    {0x1e5c,0x1e5c,0x52}, {0x1e5d,0x1e5d,0x72}, {0x1e5e,0x1e5e,0x52}, {0x1e5f,0x1e5f,0x72}, {0x1e60,0x1e60,0x53},
    {0x1e61,0x1e61,0x73}, {0x1e62,0x1e62,0x53}, {0x1e63,0x1e63,0x73}, {0x1e64,0x1e64,0x53}, {0x1e65,0x1e65,0x73},
    {0x1e66,0x1e66,0x53}, {0x1e67,0x1e67,0x73}, {0x1e68,0x1e68,0x53}, {0x1e69,0x1e69,0x73}, {0x1e6a,0x1e6a,0x54},
    {0x1e6b,0x1e6b,0x74}, {0x1e6c,0x1e6c,0x54}, {0x1e6d,0x1e6d,0x74}, {0x1e6e,0x1e6e,0x54}, {0x1e6f,0x1e6f,0x74},
    {0x1e70,0x1e70,0x54}, {0x1e71,0x1e71,0x74}, {0x1e72,0x1e72,0x55}, {0x1e73,0x1e73,0x75}, {0x1e74,0x1e74,0x55},
    {0x1e75,0x1e75,0x75}, {0x1e76,0x1e76,0x55}, {0x1e77,0x1e77,0x75}, {0x1e78,0x1e78,0x55}, {0x1e79,0x1e79,0x75},
    {0x1e7a,0x1e7a,0x55}, {0x1e7b,0x1e7b,0x75}, {0x1e7c,0x1e7c,0x56}, {0x1e7d,0x1e7d,0x76}, {0x1e7e,0x1e7e,0x56},
    {0x1e7f,0x1e7f,0x76}, {0x1e80,0x1e80,0x57}, {0x1e81,0x1e81,0x77}, {0x1e82,0x1e82,0x57}, {0x1e83,0x1e83,0x77},
    {0x1e84,0x1e84,0x57}, {0x1e85,0x1e85,0x77}, {0x1e86,0x1e86,0x57}, {0x1e87,0x1e87,0x77}, {0x1e88,0x1e88,0x57},
    {0x1e89,0x1e89,0x77}, {0x1e8a,0x1e8a,0x58}, {0x1e8b,0x1e8b,0x78}, {0x1e8c,0x1e8c,0x58}, {0x1e8d,0x1e8d,0x78},
    {0x1e8e,0x1e8e,0x59}, {0x1e8f,0x1e8f,0x79}, {0x1e90,0x1e90,0x5a}, {0x1e91,0x1e91,0x7a}, {0x1e92,0x1e92,0x5a},
    {0x1e93,0x1e93,0x7a}, {0x1e94,0x1e94,0x5a}, {0x1e95,0x1e95,0x7a}, {0x1e96,0x1e96,0x68}, {0x1e97,0x1e97,0x74},
    {0x1e98,0x1e98,0x77}, {0x1e99,0x1e99,0x79}, {0x1e9b,0x1e9b,0x17f}, {0x1ea0,0x1ea0,0x41}, {0x1ea1,0x1ea1,0x61},
    {0x1ea2,0x1ea2,0x41}, {0x1ea3,0x1ea3,0x61}, {0x1ea4,0x1ea4,0x41}, {0x1ea5,0x1ea5,0x61}, {0x1ea6,0x1ea6,0x41},
    {0x1ea7,0x1ea7,0x61}, {0x1ea8,0x1ea8,0x41}, {0x1ea9,0x1ea9,0x61}, {0x1eaa,0x1eaa,0x41}, {0x1eab,0x1eab,0x61},
    {0x1eac,0x1eac,0x41}, {0x1ead,0x1ead,0x61}, {0x1eae,0x1eae,0x41}, {0x1eaf,0x1eaf,0x61}, {0x1eb0,0x1eb0,0x41},
    {0x1eb1,0x1eb1,0x61}, {0x1eb2,0x1eb2,0x41}, {0x1eb3,0x1eb3,0x61}, {0x1eb4,0x1eb4,0x41}, {0x1eb5,0x1eb5,0x61},
    {0x1eb6,0x1eb6,0x41}, {0x1eb7,0x1eb7,0x61}, {0x1eb8,0x1eb8,0x45}, {0x1eb9,0x1eb9,0x65}, {0x1eba,0x1eba,0x45},
    {0x1ebb,0x1ebb,0x65}, {0x1ebc,0x1ebc,0x45}, {0x1ebd,0x1ebd,0x65}, {0x1ebe,0x1ebe,0x45}, {0x1ebf,0x1ebf,0x65},
    {0x1ec0,0x1ec0,0x45}, {0x1ec1,0x1ec1,0x65}, {0x1ec2,0x1ec2,0x45}, {0x1ec3,0x1ec3,0x65}, {0x1ec4,0x1ec4,0x45},
    {0x1ec5,0x1ec5,0x65}, {0x1ec6,0x1ec6,0x45}, {0x1ec7,0x1ec7,0x65}, {0x1ec8,0x1ec8,0x49}, {0x1ec9,0x1ec9,0x69},
    {0x1eca,0x1eca,0x49}, {0x1ecb,0x1ecb,0x69}, {0x1ecc,0x1ecc,0x4f}, {0x1ecd,0x1ecd,0x6f}, {0x1ece,0x1ece,0x4f},
    {0x1ecf,0x1ecf,0x6f}, {0x1ed0,0x1ed0,0x4f}, {0x1ed1,0x1ed1,0x6f}, {0x1ed2,0x1ed2,0x4f}, {0x1ed3,0x1ed3,0x6f},
    {0x1ed4,0x1ed4,0x4f}, {0x1ed5,0x1ed5,0x6f}, {0x1ed6,0x1ed6,0x4f}, {0x1ed7,0x1ed7,0x6f}, {0x1ed8,0x1ed8,0x4f},
    {0x1ed9,0x1ed9,0x6f}, {0x1eda,0x1eda,0x4f}, {0x1edb,0x1edb,0x6f}, {0x1edc,0x1edc,0x4f}, {0x1edd,0x1edd,0x6f},
    {0x1ede,0x1ede,0x4f}, {0x1edf,0x1edf,0x6f}, {0x1ee0,0x1ee0,0x4f}, {0x1ee1,0x1ee1,0x6f}, {0x1ee2,0x1ee2,0x4f},
    {0x1ee3,0x1ee3,0x6f}, {0x1ee4,0x1ee4,0x55}, {0x1ee5,0x1ee5,0x75}, {0x1ee6,0x1ee6,0x55}, {0x1ee7,0x1ee7,0x75},
    {0x1ee8,0x1ee8,0x55}, {0x1ee9,0x1ee9,0x75}, {0x1eea,0x1eea,0x55}, {0x1eeb,0x1eeb,0x75}, {0x1eec,0x1eec,0x55},
    {0x1eed,0x1eed,0x75}, {0x1eee,0x1eee,0x55}, {0x1eef,0x1eef,0x75}, {0x1ef0,0x1ef0,0x55}, {0x1ef1,0x1ef1,0x75},
    {0x1ef2,0x1ef2,0x59}, {0x1ef3,0x1ef3,0x79}, {0x1ef4,0x1ef4,0x59}, {0x1ef5,0x1ef5,0x79}, {0x1ef6,0x1ef6,0x59},
    {0x1ef7,0x1ef7,0x79}, {0x1ef8,0x1ef8,0x59}, {0x1ef9,0x1ef9,0x79}, {0x1f00,0x1f07,0x3b1}, {0x1f08,0x1f0f,0x391},
    {0x1f10,0x1f15,0x3b5}, {0x1f18,0x1f1d,0x395}, {0x1f20,0x1f27,0x3b7}, {0x1f28,0x1f2f,0x397}, {0x1f30,0x1f37,0x3b9},
    {0x1f38,0x1f3f,0x399}, {0x1f40,0x1f45,0x3bf}, {0x1f48,0x1f4d,0x39f}, {0x1f50,0x1f57,0x3c5}, {0x1f59,0x1f59,0x3a5},
    {0x1f5b,0x1f5b,0x3a5}, {0x1f5d,0x1f5d,0x3a5}, {0x1f5f,0x1f5f,0x3a5}, {0x1f60,0x1f67,0x3c9}, {0x1f68,0x1f6f,0x3a9},
    {0x1f70,0x1f71,0x3b1}, {0x1f72,0x1f73,0x3b5}, {0x1f74,0x1f75,0x3b7}, {0x1f76,0x1f77,0x3b9}, {0x1f78,0x1f79,0x3bf},
    {0x1f7a,0x1f7b,0x3c5}, {0x1f7c,0x1f7d,0x3c9}, {0x1f80,0x1f87,0x3b1}, {0x1f88,0x1f8f,0x391}, {0x1f90,0x1f97,0x3b7},
    {0x1f98,0x1f9f,0x397}, {0x1fa0,0x1fa7,0x3c9}, {0x1fa8,0x1faf,0x3a9}, {0x1fb0,0x1fb4,0x3b1}, {0x1fb6,0x1fb7,0x3b1},
    {0x1fb8,0x1fbc,0x391}, {0x1fbe,0x1fbe,0x3b9}, {0x1fc1,0x1fc1,0xa8}, {0x1fc2,0x1fc4,0x3b7}, {0x1fc6,0x1fc7,0x3b7},
    {0x1fc8,0x1fc9,0x395}, {0x1fca,0x1fcc,0x397}, {0x1fcd,0x1fcf,0x1fbf}, {0x1fd0,0x1fd3,0x3b9}, {0x1fd6,0x1fd7,0x3b9},
    {0x1fd8,0x1fdb,0x399}, {0x1fdd,0x1fdf,0x1ffe}, {0x1fe0,0x1fe3,0x3c5}, {0x1fe4,0x1fe5,0x3c1}, {0x1fe6,0x1fe7,0x3c5},
    {0x1fe8,0x1feb,0x3a5}, {0x1fec,0x1fec,0x3a1}, {0x1fed,0x1fee,0xa8}, {0x1fef,0x1fef,0x60}, {0x1ff2,0x1ff4,0x3c9},
    {0x1ff6,0x1ff7,0x3c9}, {0x1ff8,0x1ff9,0x39f}, {0x1ffa,0x1ffc,0x3a9}, {0x1ffd,0x1ffd,0xb4}, {0x2000,0x2000,0x2002},
    {0x2001,0x2001,0x2003}, {0x2126,0x2126,0x3a9}, {0x212a,0x212a,0x4b}, {0x212b,0x212b,0x41}, {0x219a,0x219a,0x2190},
    {0x219b,0x219b,0x2192}, {0x21ae,0x21ae,0x2194}, {0x21cd,0x21cd,0x21d0}, {0x21ce,0x21ce,0x21d4},
    {0x21cf,0x21cf,0x21d2}, {0x2204,0x2204,0x2203}, {0x2209,0x2209,0x2208}, {0x220c,0x220c,0x220b},
    {0x2224,0x2224,0x2223}, {0x2226,0x2226,0x2225}, {0x2241,0x2241,0x223c}, {0x2244,0x2244,0x2243},
    {0x2247,0x2247,0x2245}, {0x2249,0x2249,0x2248}, {0x2260,0x2260,0x3d}, {0x2262,0x2262,0x2261},
    {0x226d,0x226d,0x224d}, {0x226e,0x226e,0x3c}, {0x226f,0x226f,0x3e}, {0x2270,0x2270,0x2264}, {0x2271,0x2271,0x2265},
    {0x2274,0x2274,0x2272}, {0x2275,0x2275,0x2273}, {0x2278,0x2278,0x2276}, {0x2279,0x2279,0x2277},
    {0x2280,0x2280,0x227a}, {0x2281,0x2281,0x227b}, {0x2284,0x2284,0x2282}, {0x2285,0x2285,0x2283},
    {0x2288,0x2288,0x2286}, {0x2289,0x2289,0x2287}, {0x22ac,0x22ac,0x22a2}, {0x22ad,0x22ad,0x22a8},
    {0x22ae,0x22ae,0x22a9}, {0x22af,0x22af,0x22ab}, {0x22e0,0x22e0,0x227c}, {0x22e1,0x22e1,0x227d},
    {0x22e2,0x22e2,0x2291}, {0x22e3,0x22e3,0x2292}, {0x22ea,0x22ea,0x22b2}, {0x22eb,0x22eb,0x22b3},
    {0x22ec,0x22ec,0x22b4}, {0x22ed,0x22ed,0x22b5}, {0x2329,0x2329,0x3008}, {0x232a,0x232a,0x3009},
    {0x2adc,0x2adc,0x2add}, {0x304c,0x304c,0x304b}, {0x304e,0x304e,0x304d}, {0x3050,0x3050,0x304f},
    {0x3052,0x3052,0x3051}, {0x3054,0x3054,0x3053}, {0x3056,0x3056,0x3055}, {0x3058,0x3058,0x3057},
    {0x305a,0x305a,0x3059}, {0x305c,0x305c,0x305b}, {0x305e,0x305e,0x305d}, {0x3060,0x3060,0x305f},
    {0x3062,0x3062,0x3061}, {0x3065,0x3065,0x3064}, {0x3067,0x3067,0x3066}, {0x3069,0x3069,0x3068},
    {0x3070,0x3071,0x306f}, {0x3073,0x3074,0x3072}, {0x3076,0x3077,0x3075}, {0x3079,0x307a,0x3078},
    {0x307c,0x307d,0x307b}, {0x3094,0x3094,0x3046}, {0x309e,0x309e,0x309d}, {0x30ac,0x30ac,0x30ab},
    {0x30ae,0x30ae,0x30ad}, {0x30b0,0x30b0,0x30af}, {0x30b2,0x30b2,0x30b1}, {0x30b4,0x30b4,0x30b3},
    {0x30b6,0x30b6,0x30b5}, {0x30b8,0x30b8,0x30b7}, {0x30ba,0x30ba,0x30b9}, {0x30bc,0x30bc,0x30bb},
    {0x30be,0x30be,0x30bd}, {0x30c0,0x30c0,0x30bf}, {0x30c2,0x30c2,0x30c1}, {0x30c5,0x30c5,0x30c4},
    {0x30c7,0x30c7,0x30c6}, {0x30c9,0x30c9,0x30c8}, {0x30d0,0x30d1,0x30cf}, {0x30d3,0x30d4,0x30d2},
    {0x30d6,0x30d7,0x30d5}, {0x30d9,0x30da,0x30d8}, {0x30dc,0x30dd,0x30db}, {0x30f4,0x30f4,0x30a6},
    {0x30f7,0x30f7,0x30ef}, {0x30f8,0x30f8,0x30f0}, {0x30f9,0x30f9,0x30f1}, {0x30fa,0x30fa,0x30f2},
    {0x30fe,0x30fe,0x30fd}, {0xfb1d,0xfb1d,0x5d9}, {0xfb1f,0xfb1f,0x5f2}, {0xfb2a,0xfb2d,0x5e9}, {0xfb2e,0xfb30,0x5d0},
    {0xfb31,0xfb31,0x5d1}, {0xfb32,0xfb32,0x5d2}, {0xfb33,0xfb33,0x5d3}, {0xfb34,0xfb34,0x5d4}, {0xfb35,0xfb35,0x5d5},
    {0xfb36,0xfb36,0x5d6}, {0xfb38,0xfb38,0x5d8}, {0xfb39,0xfb39,0x5d9}, {0xfb3a,0xfb3a,0x5da}, {0xfb3b,0xfb3b,0x5db},
    {0xfb3c,0xfb3c,0x5dc}, {0xfb3e,0xfb3e,0x5de}, {0xfb40,0xfb40,0x5e0}, {0xfb41,0xfb41,0x5e1}, {0xfb43,0xfb43,0x5e3},
    {0xfb44,0xfb44,0x5e4}, {0xfb46,0xfb46,0x5e6}, {0xfb47,0xfb47,0x5e7}, {0xfb48,0xfb48,0x5e8}, {0xfb49,0xfb49,0x5e9},
    {0xfb4a,0xfb4a,0x5ea}, {0xfb4b,0xfb4b,0x5d5}, {0xfb4c,0xfb4c,0x5d1}, {0xfb4d,0xfb4d,0x5db}, {0xfb4e,0xfb4e,0x5e4},
    {0x1109a,0x1109a,0x11099}, {0x1109c,0x1109c,0x1109b}, {0x110ab,0x110ab,0x110a5}, {0x114bb,0x114bb,0x114b9},
};
static const uint32_t llmi_uc_ideographs_f900[512] = {
    0x8c48, 0x66f4, 0x8eca, 0x8cc8, 0x6ed1, 0x4e32, 0x53e5, 0x9f9c, 0x9f9c, 0x5951, 0x91d1, 0x5587, 0x5948, 0x61f6,
    0x7669, 0x7f85, 0x863f, 0x87ba, 0x88f8, 0x908f, 0x6a02, 0x6d1b, 0x70d9, 0x73de, 0x843d, 0x916a, 0x99f1, 0x4e82,
    0x5375, 0x6b04, 0x721b, 0x862d, 0x9e1e, 0x5d50, 0x6feb, 0x85cd, 0x8964, 0x62c9, 0x81d8, 0x881f, 0x5eca, 0x6717,
    0x6d6a, 0x72fc, 0x90ce, 0x4f86, 0x51b7, 0x52de, 0x64c4, 0x6ad3, 0x7210, 0x76e7, 0x8001, 0x8606, 0x865c, 0x8def,
    0x9732, 0x9b6f, 0x9dfa, 0x788c, 0x797f, 0x7da0, 0x83c9, 0x9304, 0x9e7f, 0x8ad6, 0x58df, 0x5f04, 0x7c60, 0x807e,
    0x7262, 0x78ca, 0x8cc2, 0x96f7, 0x58d8, 0x5c62, 0x6a13, 0x6dda, 0x6f0f, 0x7d2f, 0x7e37, 0x964b, 0x52d2, 0x808b,
    0x51dc, 0x51cc, 0x7a1c, 0x7dbe, 0x83f1, 0x9675, 0x8b80, 0x62cf, 0x6a02, 0x8afe, 0x4e39, 0x5be7, 0x6012, 0x7387,
    0x7570, 0x5317, 0x78fb, 0x4fbf, 0x5fa9, 0x4e0d, 0x6ccc, 0x6578, 0x7d22, 0x53c3, 0x585e, 0x7701, 0x8449, 0x8aaa,
    0x6bba, 0x8fb0, 0x6c88, 0x62fe, 0x82e5, 0x63a0, 0x7565, 0x4eae, 0x5169, 0x51c9, 0x6881, 0x7ce7, 0x826f, 0x8ad2,
    0x91cf, 0x52f5, 0x5442, 0x5973, 0x5eec, 0x65c5, 0x6ffe, 0x792a, 0x95ad, 0x9a6a, 0x9e97, 0x9ece, 0x529b, 0x66c6,
    0x6b77, 0x8f62, 0x5e74, 0x6190, 0x6200, 0x649a, 0x6f23, 0x7149, 0x7489, 0x79ca, 0x7df4, 0x806f, 0x8f26, 0x84ee,
    0x9023, 0x934a, 0x5217, 0x52a3, 0x54bd, 0x70c8, 0x88c2, 0x8aaa, 0x5ec9, 0x5ff5, 0x637b, 0x6bae, 0x7c3e, 0x7375,
    0x4ee4, 0x56f9, 0x5be7, 0x5dba, 0x601c, 0x73b2, 0x7469, 0x7f9a, 0x8046, 0x9234, 0x96f6, 0x9748, 0x9818, 0x4f8b,
    0x79ae, 0x91b4, 0x96b8, 0x60e1, 0x4e86, 0x50da, 0x5bee, 0x5c3f, 0x6599, 0x6a02, 0x71ce, 0x7642, 0x84fc, 0x907c,
    0x9f8d, 0x6688, 0x962e, 0x5289, 0x677b, 0x67f3, 0x6d41, 0x6e9c, 0x7409, 0x7559, 0x786b, 0x7d10, 0x985e, 0x516d,
    0x622e, 0x9678, 0x502b, 0x5d19, 0x6dea, 0x8f2a, 0x5f8b, 0x6144, 0x6817, 0x7387, 0x9686, 0x5229, 0x540f, 0x5c65,
    0x6613, 0x674e, 0x68a8, 0x6ce5, 0x7406, 0x75e2, 0x7f79, 0x88cf, 0x88e1, 0x91cc, 0x96e2, 0x533f, 0x6eba, 0x541d,
    0x71d0, 0x7498, 0x85fa, 0x96a3, 0x9c57, 0x9e9f, 0x6797, 0x6dcb, 0x81e8, 0x7acb, 0x7b20, 0x7c92, 0x72c0, 0x7099,
    0x8b58, 0x4ec0, 0x8336, 0x523a, 0x5207, 0x5ea6, 0x62d3, 0x7cd6, 0x5b85, 0x6d1e, 0x66b4, 0x8f3b, 0x884c, 0x964d,
    0x898b, 0x5ed3, 0x5140, 0x55c0, 0xfa0e, 0xfa0f, 0x585a, 0xfa11, 0x6674, 0xfa13, 0xfa14, 0x51de, 0x732a, 0x76ca,
    0x793c, 0x795e, 0x7965, 0x798f, 0x9756, 0x7cbe, 0x7fbd, 0xfa1f, 0x8612, 0xfa21, 0x8af8, 0xfa23, 0xfa24, 0x9038,
    0x90fd, 0xfa27, 0xfa28, 0xfa29, 0x98ef, 0x98fc, 0x9928, 0x9db4, 0x90de, 0x96b7, 0x4fae, 0x50e7, 0x514d, 0x52c9,
    0x52e4, 0x5351, 0x559d, 0x5606, 0x5668, 0x5840, 0x58a8, 0x5c64, 0x5c6e, 0x6094, 0x6168, 0x618e, 0x61f2, 0x654f,
    0x65e2, 0x6691, 0x6885, 0x6d77, 0x6e1a, 0x6f22, 0x716e, 0x722b, 0x7422, 0x7891, 0x793e, 0x7949, 0x7948, 0x7950,
    0x7956, 0x795d, 0x798d, 0x798e, 0x7a40, 0x7a81, 0x7bc0, 0x7df4, 0x7e09, 0x7e41, 0x7f72, 0x8005, 0x81ed, 0x8279,
    0x8279, 0x8457, 0x8910, 0x8996, 0x8b01, 0x8b39, 0x8cd3, 0x8d08, 0x8fb6, 0x9038, 0x96e3, 0x97ff, 0x983b, 0x6075,
    0x242ee, 0x8218, 0xfa6e, 0xfa6f, 0x4e26, 0x51b5, 0x5168, 0x4f80, 0x5145, 0x5180, 0x52c7, 0x52fa, 0x559d, 0x5555,
    0x5599, 0x55e2, 0x585a, 0x58b3, 0x5944, 0x5954, 0x5a62, 0x5b28, 0x5ed2, 0x5ed9, 0x5f69, 0x5fad, 0x60d8, 0x614e,
    0x6108, 0x618e, 0x6160, 0x61f2, 0x6234, 0x63c4, 0x641c, 0x6452, 0x6556, 0x6674, 0x6717, 0x671b, 0x6756, 0x6b79,
    0x6bba, 0x6d41, 0x6edb, 0x6ecb, 0x6f22, 0x701e, 0x716e, 0x77a7, 0x7235, 0x72af, 0x732a, 0x7471, 0x7506, 0x753b,
    0x761d, 0x761f, 0x76ca, 0x76db, 0x76f4, 0x774a, 0x7740, 0x78cc, 0x7ab1, 0x7bc0, 0x7c7b, 0x7d5b, 0x7df4, 0x7f3e,
    0x8005, 0x8352, 0x83ef, 0x8779, 0x8941, 0x8986, 0x8996, 0x8abf, 0x8af8, 0x8acb, 0x8b01, 0x8afe, 0x8aed, 0x8b39,
    0x8b8a, 0x8d08, 0x8f38, 0x9072, 0x9199, 0x9276, 0x967c, 0x96e3, 0x9756, 0x97db, 0x97ff, 0x980b, 0x983b, 0x9b12,
    0x9f9c, 0x2284a, 0x22844, 0x233d5, 0x3b9d, 0x4018, 0x4039, 0x25249, 0x25cd0, 0x27ed3, 0x9f43, 0x9f8e, 0xfada,
    0xfadb, 0xfadc, 0xfadd, 0xfade, 0xfadf, 0xfae0, 0xfae1, 0xfae2, 0xfae3, 0xfae4, 0xfae5, 0xfae6, 0xfae7, 0xfae8,
    0xfae9, 0xfaea, 0xfaeb, 0xfaec, 0xfaed, 0xfaee, 0xfaef, 0xfaf0, 0xfaf1, 0xfaf2, 0xfaf3, 0xfaf4, 0xfaf5, 0xfaf6,
    0xfaf7, 0xfaf8, 0xfaf9, 0xfafa, 0xfafb, 0xfafc, 0xfafd, 0xfafe, 0xfaff,
};
static const uint32_t llmi_uc_ideographs_2f800[544] = {
    0x4e3d, 0x4e38, 0x4e41, 0x20122, 0x4f60, 0x4fae, 0x4fbb, 0x5002, 0x507a, 0x5099, 0x50e7, 0x50cf, 0x349e, 0x2063a,
    0x514d, 0x5154, 0x5164, 0x5177, 0x2051c, 0x34b9, 0x5167, 0x518d, 0x2054b, 0x5197, 0x51a4, 0x4ecc, 0x51ac, 0x51b5,
    0x291df, 0x51f5, 0x5203, 0x34df, 0x523b, 0x5246, 0x5272, 0x5277, 0x3515, 0x52c7, 0x52c9, 0x52e4, 0x52fa, 0x5305,
    0x5306, 0x5317, 0x5349, 0x5351, 0x535a, 0x5373, 0x537d, 0x537f, 0x537f, 0x537f, 0x20a2c, 0x7070, 0x53ca, 0x53df,
    0x20b63, 0x53eb, 0x53f1, 0x5406, 0x549e, 0x5438, 0x5448, 0x5468, 0x54a2, 0x54f6, 0x5510, 0x5553, 0x5563, 0x5584,
    0x5584, 0x5599, 0x55ab, 0x55b3, 0x55c2, 0x5716, 0x5606, 0x5717, 0x5651, 0x5674, 0x5207, 0x58ee, 0x57ce, 0x57f4,
    0x580d, 0x578b, 0x5832, 0x5831, 0x58ac, 0x214e4, 0x58f2, 0x58f7, 0x5906, 0x591a, 0x5922, 0x5962, 0x216a8, 0x216ea,
    0x59ec, 0x5a1b, 0x5a27, 0x59d8, 0x5a66, 0x36ee, 0x36fc, 0x5b08, 0x5b3e, 0x5b3e, 0x219c8, 0x5bc3, 0x5bd8, 0x5be7,
    0x5bf3, 0x21b18, 0x5bff, 0x5c06, 0x5f53, 0x5c22, 0x3781, 0x5c60, 0x5c6e, 0x5cc0, 0x5c8d, 0x21de4, 0x5d43, 0x21de6,
    0x5d6e, 0x5d6b, 0x5d7c, 0x5de1, 0x5de2, 0x382f, 0x5dfd, 0x5e28, 0x5e3d, 0x5e69, 0x3862, 0x22183, 0x387c, 0x5eb0,
    0x5eb3, 0x5eb6, 0x5eca, 0x2a392, 0x5efe, 0x22331, 0x22331, 0x8201, 0x5f22, 0x5f22, 0x38c7, 0x232b8, 0x261da, 0x5f62,
    0x5f6b, 0x38e3, 0x5f9a, 0x5fcd, 0x5fd7, 0x5ff9, 0x6081, 0x393a, 0x391c, 0x6094, 0x226d4, 0x60c7, 0x6148, 0x614c,
    0x614e, 0x614c, 0x617a, 0x618e, 0x61b2, 0x61a4, 0x61af, 0x61de, 0x61f2, 0x61f6, 0x6210, 0x621b, 0x625d, 0x62b1,
    0x62d4, 0x6350, 0x22b0c, 0x633d, 0x62fc, 0x6368, 0x6383, 0x63e4, 0x22bf1, 0x6422, 0x63c5, 0x63a9, 0x3a2e, 0x6469,
    0x647e, 0x649d, 0x6477, 0x3a6c, 0x654f, 0x656c, 0x2300a, 0x65e3, 0x66f8, 0x6649, 0x3b19, 0x6691, 0x3b08, 0x3ae4,
    0x5192, 0x5195, 0x6700, 0x669c, 0x80ad, 0x43d9, 0x6717, 0x671b, 0x6721, 0x675e, 0x6753, 0x233c3, 0x3b49, 0x67fa,
    0x6785, 0x6852, 0x6885, 0x2346d, 0x688e, 0x681f, 0x6914, 0x3b9d, 0x6942, 0x69a3, 0x69ea, 0x6aa8, 0x236a3, 0x6adb,
    0x3c18, 0x6b21, 0x238a7, 0x6b54, 0x3c4e, 0x6b72, 0x6b9f, 0x6bba, 0x6bbb, 0x23a8d, 0x21d0b, 0x23afa, 0x6c4e, 0x23cbc,
    0x6cbf, 0x6ccd, 0x6c67, 0x6d16, 0x6d3e, 0x6d77, 0x6d41, 0x6d69, 0x6d78, 0x6d85, 0x23d1e, 0x6d34, 0x6e2f, 0x6e6e,
    0x3d33, 0x6ecb, 0x6ec7, 0x23ed1, 0x6df9, 0x6f6e, 0x23f5e, 0x23f8e, 0x6fc6, 0x7039, 0x701e, 0x701b, 0x3d96, 0x704a,
    0x707d, 0x7077, 0x70ad, 0x20525, 0x7145, 0x24263, 0x719c, 0x243ab, 0x7228, 0x7235, 0x7250, 0x24608, 0x7280, 0x7295,
    0x24735, 0x24814, 0x737a, 0x738b, 0x3eac, 0x73a5, 0x3eb8, 0x3eb8, 0x7447, 0x745c, 0x7471, 0x7485, 0x74ca, 0x3f1b,
    0x7524, 0x24c36, 0x753e, 0x24c92, 0x7570, 0x2219f, 0x7610, 0x24fa1, 0x24fb8, 0x25044, 0x3ffc, 0x4008, 0x76f4,
    0x250f3, 0x250f2, 0x25119, 0x25133, 0x771e, 0x771f, 0x771f, 0x774a, 0x4039, 0x778b, 0x4046, 0x4096, 0x2541d, 0x784e,
    0x788c, 0x78cc, 0x40e3, 0x25626, 0x7956, 0x2569a, 0x256c5, 0x798f, 0x79eb, 0x412f, 0x7a40, 0x7a4a, 0x7a4f, 0x2597c,
    0x25aa7, 0x25aa7, 0x7aee, 0x4202, 0x25bab, 0x7bc6, 0x7bc9, 0x4227, 0x25c80, 0x7cd2, 0x42a0, 0x7ce8, 0x7ce3, 0x7d00,
    0x25f86, 0x7d63, 0x4301, 0x7dc7, 0x7e02, 0x7e45, 0x4334, 0x26228, 0x26247, 0x4359, 0x262d9, 0x7f7a, 0x2633e, 0x7f95,
    0x7ffa, 0x8005, 0x264da, 0x26523, 0x8060, 0x265a8, 0x8070, 0x2335f, 0x43d5, 0x80b2, 0x8103, 0x440b, 0x813e, 0x5ab5,
    0x267a7, 0x267b5, 0x23393, 0x2339c, 0x8201, 0x8204, 0x8f9e, 0x446b, 0x8291, 0x828b, 0x829d, 0x52b3, 0x82b1, 0x82b3,
    0x82bd, 0x82e6, 0x26b3c, 0x82e5, 0x831d, 0x8363, 0x83ad, 0x8323, 0x83bd, 0x83e7, 0x8457, 0x8353, 0x83ca, 0x83cc,
    0x83dc, 0x26c36, 0x26d6b, 0x26cd5, 0x452b, 0x84f1, 0x84f3, 0x8516, 0x273ca, 0x8564, 0x26f2c, 0x455d, 0x4561,
    0x26fb1, 0x270d2, 0x456b, 0x8650, 0x865c, 0x8667, 0x8669, 0x86a9, 0x8688, 0x870e, 0x86e2, 0x8779, 0x8728, 0x876b,
    0x8786, 0x45d7, 0x87e1, 0x8801, 0x45f9, 0x8860, 0x8863, 0x27667, 0x88d7, 0x88de, 0x4635, 0x88fa, 0x34bb, 0x278ae,
    0x27966, 0x46be, 0x46c7, 0x8aa0, 0x8aed, 0x8b8a, 0x8c55, 0x27ca8, 0x8cab, 0x8cc1, 0x8d1b, 0x8d77, 0x27f2f, 0x20804,
    0x8dcb, 0x8dbc, 0x8df0, 0x208de, 0x8ed4, 0x8f38, 0x285d2, 0x285ed, 0x9094, 0x90f1, 0x9111, 0x2872e, 0x911b, 0x9238,
    0x92d7, 0x92d8, 0x927c, 0x93f9, 0x9415, 0x28bfa, 0x958b, 0x4995, 0x95b7, 0x28d77, 0x49e6, 0x96c3, 0x5db2, 0x9723,
    0x29145, 0x2921a, 0x4a6e, 0x4a76, 0x97e0, 0x2940a, 0x4ab2, 0x29496, 0x980b, 0x980b, 0x9829, 0x295b6, 0x98e2, 0x4b33,
    0x9929, 0x99a7, 0x99c2, 0x99fe, 0x4bce, 0x29b30, 0x9b12, 0x9c40, 0x9cfd, 0x4cce, 0x4ced, 0x9d67, 0x2a0ce, 0x4cf8,
    0x2a105, 0x2a20e, 0x2a291, 0x9ebb, 0x4d56, 0x9ef9, 0x9efe, 0x9f05, 0x9f0f, 0x9f16, 0x9f3b, 0x2a600, 0x2fa1e,
    0x2fa1f,
};
// code point, its two or three parts
static const uint32_t llmi_uc_strip_rest[43][4] = {
    {0x9cb,0x9c7,0x9be,0x0}, {0x9cc,0x9c7,0x9d7,0x0}, {0xb4b,0xb47,0xb3e,0x0}, {0xb4c,0xb47,0xb57,0x0},
    {0xb94,0xb92,0xbd7,0x0}, {0xbca,0xbc6,0xbbe,0x0}, {0xbcb,0xbc7,0xbbe,0x0}, {0xbcc,0xbc6,0xbd7,0x0},
    {0xccb,0xcc2,0xcd5,0x0}, {0xd4a,0xd46,0xd3e,0x0}, {0xd4b,0xd47,0xd3e,0x0}, {0xd4c,0xd46,0xd57,0x0},
    {0xddc,0xdd9,0xdcf,0x0}, {0xddd,0xdd9,0xdcf,0x0}, {0xdde,0xdd9,0xddf,0x0}, {0x1b06,0x1b05,0x1b35,0x0},
    {0x1b08,0x1b07,0x1b35,0x0}, {0x1b0a,0x1b09,0x1b35,0x0}, {0x1b0c,0x1b0b,0x1b35,0x0}, {0x1b0e,0x1b0d,0x1b35,0x0},
    {0x1b12,0x1b11,0x1b35,0x0}, {0x1b40,0x1b3e,0x1b35,0x0}, {0x1b41,0x1b3f,0x1b35,0x0}, {0x1134b,0x11347,0x1133e,0x0},
    {0x1134c,0x11347,0x11357,0x0}, {0x114bc,0x114b9,0x114b0,0x0}, {0x114be,0x114b9,0x114bd,0x0},
    {0x115ba,0x115b8,0x115af,0x0}, {0x115bb,0x115b9,0x115af,0x0}, {0x11938,0x11935,0x11930,0x0},
    {0x1d15e,0x1d157,0x1d165,0x0}, {0x1d15f,0x1d158,0x1d165,0x0}, {0x1d160,0x1d158,0x1d165,0x1d16e},
    {0x1d161,0x1d158,0x1d165,0x1d16f}, {0x1d162,0x1d158,0x1d165,0x1d170}, {0x1d163,0x1d158,0x1d165,0x1d171},
    {0x1d164,0x1d158,0x1d165,0x1d172}, {0x1d1bb,0x1d1b9,0x1d165,0x0}, {0x1d1bc,0x1d1ba,0x1d165,0x0},
    {0x1d1bd,0x1d1b9,0x1d165,0x1d16e}, {0x1d1be,0x1d1ba,0x1d165,0x1d16e}, {0x1d1bf,0x1d1b9,0x1d165,0x1d16f},
    {0x1d1c0,0x1d1ba,0x1d165,0x1d16f},
};
// clang-format on

// Class of a code point; UNASSIGNED above U+10FFFF.
static enum llmi_uc llmi_uc_class(uint32_t cp) {
    size_t low = 0;
    size_t high = sizeof llmi_uc_runs / sizeof llmi_uc_runs[0];
    if (cp > 0x10FFFF) { return LLMI_UC_UNASSIGNED; }
    while (high - low > 1) { // run low begins at or before cp, run high after it
        size_t mid = low + (high - low) / 2;
        if (llmi_uc_runs[mid] >> 4 <= cp) {
            low = mid;
        } else {
            high = mid;
        }
    }
    if ((llmi_uc_runs[low] & 15) < LLMI_UC_CASE_PAIRS) { return (enum llmi_uc)(llmi_uc_runs[low] & 15); }
    return (cp - (llmi_uc_runs[low] >> 4)) & 1 ? LLMI_UC_LOWER : LLMI_UC_UPPER;
}

// Simple lower case of a code point; itself if there is none.
static uint32_t llmi_uc_lower(uint32_t cp) {
    size_t low = 0;
    size_t high = sizeof llmi_uc_lower_runs / sizeof llmi_uc_lower_runs[0];
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        const struct llmi_uc_lower_run * run = &llmi_uc_lower_runs[mid];
        if (cp > run->last) {
            low = mid + 1;
        } else if (cp < run->first) {
            high = mid;
        } else {
            return (cp - run->first) % run->step == 0 ? (uint32_t) ((int32_t) cp + run->delta) : cp;
        }
    }
    return cp;
}

// Hangul syllable into its two or three letters.
static int llmi_uc_hangul(uint32_t syllable, uint32_t out[LLMI_UC_MAX_PARTS]) {
    out[0] = 0x1100 + syllable / (21 * 28);
    out[1] = 0x1161 + syllable / 28 % 21;
    out[2] = 0x11A7 + syllable % 28;
    return syllable % 28 ? 3 : 2;
}

// Full canonical decomposition (NFD) of a code point without its accents (class ACCENT), for WordPiece. Returns the
// number of code points in out: 0 for an accent, 1 for most. Marks of class MARK keep their order.
static int llmi_uc_strip(uint32_t cp, uint32_t out[LLMI_UC_MAX_PARTS]) {
    size_t low = 0;
    size_t high = sizeof llmi_uc_strip_runs / sizeof llmi_uc_strip_runs[0];
    size_t i;
    out[0] = cp;
    if (cp < 0xC0) { return 1; }
    if (cp - 0xAC00 < 11172) { return llmi_uc_hangul(cp - 0xAC00, out); }
    if (cp - 0xF900 < 0x200) {
        out[0] = llmi_uc_ideographs_f900[cp - 0xF900];
        return 1;
    }
    if (cp - 0x2F800 < 0x220) {
        out[0] = llmi_uc_ideographs_2f800[cp - 0x2F800];
        return 1;
    }
    if (llmi_uc_class(cp) == LLMI_UC_ACCENT) { return 0; }
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (cp > llmi_uc_strip_runs[mid][1]) {
            low = mid + 1;
        } else if (cp < llmi_uc_strip_runs[mid][0]) {
            high = mid;
        } else {
            out[0] = llmi_uc_strip_runs[mid][2];
            return 1;
        }
    }
    for (i = 0; i < sizeof llmi_uc_strip_rest / sizeof llmi_uc_strip_rest[0]; ++i) {
        const uint32_t * row = llmi_uc_strip_rest[i];
        if (row[0] != cp) { continue; }
        out[0] = row[1];
        out[1] = row[2];
        out[2] = row[3];
        return row[3] ? 3 : 2;
    }
    return 1;
}
// end of unicode

static uint32_t llmi_char_bits(uint32_t c) { return 1u << llmi_uc_class(c); } // a bit for its class

// Length of a UTF-8 character by its first byte; 0: invalid.
static size_t llmi_utf8_want(unsigned char first) {
    if (first < 0x80) { return 1; }
    if (first < 0xC2) { return 0; }
    return first < 0xE0 ? 2 : first < 0xF0 ? 3 : first < 0xF5 ? 4 : 0;
}

// Whether the byte may be number i (from 1) of the character: no overlong forms, surrogates, or code points above
// 10FFFF.
static bool llmi_utf8_follows(unsigned char first, size_t i, unsigned char byte) {
    const unsigned char low = i != 1 ? 0x80 : first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
    const unsigned char high = i != 1 ? 0xBF : first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
    return byte >= low && byte <= high;
}

// First code point of text and its length. An invalid byte is U+FFFD of length 1.
static uint32_t llmi_utf8_next(const char * text, size_t n, size_t * length) {
    const unsigned char * s = (const unsigned char *) text;
    const size_t want = llmi_utf8_want(s[0]);
    *length = 1;
    if (want == 0 || want > n) { return 0xFFFD; }
    uint32_t c = want == 1 ? s[0] : s[0] & (0x7Fu >> want);
    for (size_t i = 1; i < want; ++i) {
        if (!llmi_utf8_follows(s[0], i, s[i])) { return 0xFFFD; }
        c = c << 6 | (s[i] & 0x3Fu);
    }
    *length = want;
    return c;
}

static size_t llmi_utf8_put(uint32_t c, char * text) {
    if (c < 0x80) {
        text[0] = (char) c;
        return 1;
    }
    const size_t n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (size_t i = n - 1; i > 0; --i) {
        text[i] = (char) (0x80 | (c & 0x3F));
        c >>= 6;
    }
    text[0] = (char) ((0xF00u >> n) | c);
    return n;
}

size_t llm_utf8_whole(const char * text, size_t n_bytes) {
    for (size_t back = 1; back <= 3 && back <= n_bytes; ++back) {
        const unsigned char * s = (const unsigned char *) text + n_bytes - back;
        if ((s[0] & 0xC0) == 0x80) { continue; } // in the middle of a character
        bool is_open = llmi_utf8_want(s[0]) > back;
        for (size_t i = 1; i < back; ++i) { is_open = is_open && llmi_utf8_follows(s[0], i, s[i]); }
        return is_open ? n_bytes - back : n_bytes;
    }
    return n_bytes;
}

// =====================================================================================================
// >>pre   pre-tokenizers: expressions that split text into pieces
// =====================================================================================================
//
// The models were trained with these regular expressions. This compiles the syntax that they use:
// alternatives, of which the first match wins, of repeated character sets; (?!\S); and \c, an extension for an English
// contraction in any case. Trying an alternative costs at most the length of the two runs that it begins with.

enum { LLMI_PRE_PASSES = 4, LLMI_PRE_ITEMS = 64, LLMI_PRE_ALTERNATIVES = 24 };

#define LLMI_GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)"
#define LLMI_LLAMA3(numbers) \
    "\\c|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" numbers "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define LLMI_UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LLMI_LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
// A word ends before a capital after small letters. o200k: contractions belong to words. tekken: digits are alone.
#define LLMI_CASED(contraction, numbers)                                                                    \
    "[^\\r\\n\\p{L}\\p{N}]?" LLMI_UPPER "*" LLMI_LOWER "+" contraction "|[^\\r\\n\\p{L}\\p{N}]?" LLMI_UPPER \
    "+" LLMI_LOWER "*" contraction "|" numbers "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

static const struct llmi_pre_row {
    const char * name;                    // tokenizer.ggml.pre
    bool add_bos;                         // unless the file says
    bool whole;                           // a piece that is a token is not split (ignore_merges)
    const char * passes[LLMI_PRE_PASSES]; // each splits the pieces of the previous pass
} llmi_pre_rows[] = {
    { "gpt-2", false, false, { LLMI_GPT2, NULL, NULL, NULL } },
    { "smollm", false, false, { "\\p{N}", LLMI_GPT2, NULL, NULL } },
    { "llama-bpe", true, true, { LLMI_LLAMA3("\\p{N}{1,3}"), NULL, NULL, NULL } },
    { "llama3", true, true, { LLMI_LLAMA3("\\p{N}{1,3}"), NULL, NULL, NULL } },
    { "llama-v3", true, true, { LLMI_LLAMA3("\\p{N}{1,3}"), NULL, NULL, NULL } },
    { "dbrx", false, false, { LLMI_LLAMA3("\\p{N}{1,3}"), NULL, NULL, NULL } },
    { "smaug-bpe", false, false, { LLMI_LLAMA3("\\p{N}{1,3}"), NULL, NULL, NULL } },
    { "qwen2", false, false, { LLMI_LLAMA3("\\p{N}"), NULL, NULL, NULL } },
    { "gpt-4o", false, false, { LLMI_CASED("\\c?", "\\p{N}{1,3}"), NULL, NULL, NULL } },
    { "tekken", true, true, { LLMI_CASED("", "\\p{N}"), NULL, NULL, NULL } },
    // of files without the key
    { "default", false, false, { "[\\p{P}\\$\\+<=>\\^~\\|]+", LLMI_GPT2, "\\p{N}+", "[0-9][0-9][0-9]" } },
};

struct llmi_set {
    uint32_t bits;     // of llmi_char_bits
    uint32_t ascii[4]; // a bit for each character below 128
    bool is_not;
};
enum llmi_item_kind { LLMI_ITEM_SET, LLMI_ITEM_NOT_AHEAD, LLMI_ITEM_CONTRACTION };
struct llmi_item {
    enum llmi_item_kind kind;
    struct llmi_set set;
    int least, most; // repetitions
};
struct llmi_span {
    int first, n;
};

struct llmi_pre {
    struct llmi_item items[LLMI_PRE_ITEMS];
    struct llmi_span alternatives[LLMI_PRE_ALTERNATIVES]; // of items
    struct llmi_span passes[LLMI_PRE_PASSES];             // of alternatives
    int n_items, n_alternatives, n_passes;
};

// ---- compiling: only the expressions above, hence no checks ----

static uint32_t llmi_class_bits(const char * name, size_t n) { // of \p{name}
    enum { UPPER = 1 << LLMI_UC_UPPER, LOWER = 1 << LLMI_UC_LOWER, OTHER = 1 << LLMI_UC_LETTER };
    static const struct {
        const char * name;
        uint32_t bits;
    } rows[] = {
        { "L", UPPER | LOWER | OTHER },
        { "Lu", UPPER },
        { "Lt", UPPER },
        { "Ll", LOWER },
        { "Lm", OTHER },
        { "Lo", OTHER },
        { "M", 1 << LLMI_UC_ACCENT | 1 << LLMI_UC_MARK },
        { "N", 1 << LLMI_UC_NUMBER },
        { "P", 1 << LLMI_UC_PUNCT },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
        if (strlen(rows[i].name) == n && memcmp(rows[i].name, name, n) == 0) { return rows[i].bits; }
    }
    return 0;
}

static void llmi_set_add(struct llmi_set * set, char c) {
    set->ascii[(unsigned char) c / 32 & 3] |= 1u << (unsigned char) c % 32;
}

static const char * llmi_compile_escape(const char * s, struct llmi_item * item) {
    struct llmi_set * set = &item->set;
    const char * end = s + 2;
    switch (s[1]) {
        case 's': set->bits |= 1u << LLMI_UC_SPACE; break;
        case 'S':
            set->bits |= 1u << LLMI_UC_SPACE;
            set->is_not = true;
            break;
        case 'r': llmi_set_add(set, '\r'); break;
        case 'n': llmi_set_add(set, '\n'); break;
        case 'c': item->kind = LLMI_ITEM_CONTRACTION; break;
        case 'p':
            end = strchr(s, '}') + 1;
            set->bits |= llmi_class_bits(s + 3, (size_t) (end - s - 4));
            break;
        default: llmi_set_add(set, s[1]); break;
    }
    return end;
}

static const char * llmi_compile_char(const char * s, struct llmi_item * item) {
    if (s[0] == '\\') { return llmi_compile_escape(s, item); }
    if (s[1] != '-') {
        llmi_set_add(&item->set, s[0]);
        return s + 1;
    }
    for (char c = s[0]; c <= s[2]; ++c) { llmi_set_add(&item->set, c); } // 0-9
    return s + 3;
}

static const char * llmi_compile_set(const char * s, struct llmi_item * item) {
    if (*s != '[') { return llmi_compile_char(s, item); }
    ++s;
    if (*s == '^') {
        item->set.is_not = true;
        ++s;
    }
    while (*s != ']') { s = llmi_compile_char(s, item); }
    return s + 1;
}

static const char * llmi_compile_count(const char * s, struct llmi_item * item) {
    item->least = *s == '?' || *s == '*' ? 0 : 1;
    item->most = *s == '*' || *s == '+' ? INT32_MAX : 1;
    if (*s == '{') { // {1,3}
        item->most = s[3] - '0';
        return s + 5;
    }
    return s + (*s == '?' || *s == '*' || *s == '+');
}

static const char * llmi_compile_item(const char * s, struct llmi_item * item) {
    memset(item, 0, sizeof *item);
    if (strncmp(s, "(?!", 3) != 0) { return llmi_compile_count(llmi_compile_set(s, item), item); }
    s = llmi_compile_set(s + 3, item);
    item->kind = LLMI_ITEM_NOT_AHEAD;
    return s + 1;
}

static void llmi_compile_pass(struct llmi_pre * p, const char * s) {
    struct llmi_span * pass = &p->passes[p->n_passes++];
    pass->first = p->n_alternatives;
    for (bool is_end = false; !is_end; ++s) {
        struct llmi_span * a = &p->alternatives[p->n_alternatives++];
        a->first = p->n_items;
        while (*s != '\0' && *s != '|') { s = llmi_compile_item(s, &p->items[p->n_items++]); }
        a->n = p->n_items - a->first;
        is_end = *s == '\0';
    }
    pass->n = p->n_alternatives - pass->first;
}

static void llmi_pre_compile(struct llmi_pre * p, const struct llmi_pre_row * row) {
    memset(p, 0, sizeof *p);
    for (int i = 0; i < LLMI_PRE_PASSES && row->passes[i] != NULL; ++i) { llmi_compile_pass(p, row->passes[i]); }
}

// ---- matching on an array of characters: its end counts as the end of the text ----

struct llmi_chars {     // of a text
    uint32_t *c, *bits; // code points, llmi_char_bits
    uint32_t * at;      // first byte of each; [n]: the end
    bool * is_first;    // of a piece
    size_t n;
};

static bool llmi_set_has(const struct llmi_set * set, uint32_t c, uint32_t bits) {
    const bool has = (set->bits & bits) != 0 || (c < 128 && (set->ascii[c / 32] >> c % 32 & 1) != 0);
    return has != set->is_not;
}

// End of the contraction that begins at `at`; `at` if there is none.
static size_t llmi_contraction(const struct llmi_chars * t, size_t at, size_t end) {
    static const char * const after[] = { "s", "t", "re", "ve", "m", "ll", "d" };
    if (at >= end || t->c[at] != '\'') { return at; }
    for (size_t i = 0; i < sizeof after / sizeof *after; ++i) {
        const size_t n = strlen(after[i]);
        size_t k = 0;
        while (k < n && at + 1 + k < end && t->c[at + 1 + k] < 128 &&
               (t->c[at + 1 + k] | 0x20) == (uint32_t) after[i][k]) {
            ++k;
        }
        if (k == n) { return at + 1 + n; }
    }
    return at;
}

#define LLMI_NO_MATCH ((int64_t) -1)

// End of the items' match at `at`; LLMI_NO_MATCH: none. Greedy, with backtracking.
static int64_t llmi_match(const struct llmi_item * item, int n, const struct llmi_chars * t, size_t at, size_t end) {
    if (n == 0) { return (int64_t) at; }
    if (item->kind == LLMI_ITEM_NOT_AHEAD) {
        const bool is_ahead = at < end && llmi_set_has(&item->set, t->c[at], t->bits[at]);
        return is_ahead ? LLMI_NO_MATCH : llmi_match(item + 1, n - 1, t, at, end);
    }
    if (item->kind == LLMI_ITEM_CONTRACTION) {
        const size_t after = llmi_contraction(t, at, end);
        return after == at && item->least > 0 ? LLMI_NO_MATCH : llmi_match(item + 1, n - 1, t, after, end);
    }
    size_t k = 0;
    while (k < (size_t) item->most && at + k < end && llmi_set_has(&item->set, t->c[at + k], t->bits[at + k])) { ++k; }
    for (; k >= (size_t) item->least; --k) {
        const int64_t last = llmi_match(item + 1, n - 1, t, at + k, end);
        if (last != LLMI_NO_MATCH || k == 0) { return last; }
    }
    return LLMI_NO_MATCH;
}

// Marks the beginnings of the pieces into which the pass splits characters [first, end).
static void llmi_split(
    const struct llmi_pre * p, const struct llmi_span * pass, const struct llmi_chars * t, size_t first, size_t end) {
    bool is_between = false; // consecutive unmatched characters are one piece
    for (size_t at = first; at < end;) {
        int64_t last = LLMI_NO_MATCH;
        for (int i = pass->first; i < pass->first + pass->n && last <= (int64_t) at; ++i) {
            last = llmi_match(p->items + p->alternatives[i].first, p->alternatives[i].n, t, at, end);
        }
        const bool is_match = last > (int64_t) at;
        if (is_match || !is_between) { t->is_first[at] = true; }
        at = is_match ? (size_t) last : at + 1;
        is_between = !is_match;
    }
}

static void llmi_split_all(const struct llmi_pre * p, const struct llmi_chars * t) {
    if (t->n > 0) { t->is_first[0] = true; }
    for (int i = 0; i < p->n_passes; ++i) {
        for (size_t first = 0; first < t->n;) {
            size_t end = first + 1;
            while (end < t->n && !t->is_first[end]) { ++end; }
            llmi_split(p, &p->passes[i], t, first, end);
            first = end;
        }
    }
}

// =====================================================================================================
// >>vocab   vocabulary: symbols, special tokens, ends
// =====================================================================================================

enum llmi_vocab_kind { LLMI_BPE, LLMI_SPM, LLMI_WPM };
// clang-format off
enum llmi_token_type { // tokenizer.ggml.token_type
    LLMI_UNDEFINED, LLMI_NORMAL, LLMI_UNKNOWN, LLMI_CONTROL, LLMI_USER_DEFINED, LLMI_UNUSED, LLMI_BYTE
};
// clang-format on
enum { LLMI_NONE = -1, LLMI_BYTE_CHARS = 0x144 }; // no token or symbol; characters for bytes in byte-level BPE

struct llmi_merge {
    int32_t left, right, result, rank; // symbols; rank: from 1 on, 0: a free slot
};
struct llmi_text_slot {
    uint32_t hash; // of the symbol's text
    int32_t next;  // symbol + 1; 0: a free slot
};

// Symbols are the units of merges: tokens, then texts in merges that are no token (most files have none).
struct llmi_vocab {
    enum llmi_vocab_kind kind;
    int32_t n_tokens, n_symbols, max_symbols; // max_symbols: allocated
    uint32_t max_text;                        // bytes that there is room for
    char *text, *piece;                       // texts of all symbols; bytes that tokens add to a text
    uint32_t *text_at, *piece_at;             // offset of each, and of the end
    uint8_t * type;                           // enum llmi_token_type
    bool * is_end;
    float * score;                   // SPM
    struct llmi_text_slot * slots;   // hash table from text to symbol
    uint32_t n_slots, n_merge_slots; // powers of two
    struct llmi_merge * merges;      // hash table from pair to merge
    uint16_t char_of_byte[256];      // BPE
    int16_t byte_of_char[LLMI_BYTE_CHARS];
    int32_t byte_symbol[256];
    uint64_t special_lengths[256][4];                // lengths of special tokens by their first byte, a bit for each
    int32_t bos, eos, unknown, separator, max_piece; // max_piece: bytes of the longest token
    bool add_bos, add_eos, add_separator, add_space, lowercase;
    const struct llmi_pre_row * pre_row;
    struct llmi_pre pre;
};

enum { LLMI_HASH_BEGIN = 0x11C9DC5 };                                   // any number
static uint32_t llmi_hash_on(uint32_t h, const char * text, size_t n) { // FNV-1a, of a text in pieces
    for (size_t i = 0; i < n; ++i) { h = (h ^ (unsigned char) text[i]) * 16777619u; }
    return h;
}
static uint32_t llmi_hash_end(uint32_t h) { return h ^ h >> 15; }
static uint32_t llmi_hash(const char * text, size_t n) { return llmi_hash_end(llmi_hash_on(LLMI_HASH_BEGIN, text, n)); }
static uint32_t llmi_hash_pair(int32_t left, int32_t right) {
    const uint64_t h = ((uint64_t) (uint32_t) left << 32 | (uint32_t) right) * 0x9E3779B97F4A7C15u;
    return (uint32_t) (h >> 32);
}
static uint32_t llmi_slots_for(size_t n) { // at most half full
    uint32_t slots = 16;
    while (slots < 2 * n) { slots *= 2; }
    return slots;
}

static size_t llmi_symbol_size(const struct llmi_vocab * v, int32_t symbol) {
    return v->text_at[symbol + 1] - v->text_at[symbol];
}

// Slot of a text with this hash: has the text's symbol, or is free.
static struct llmi_text_slot * llmi_slot(const struct llmi_vocab * v, const char * text, size_t n, uint32_t hash) {
    uint32_t i = hash & (v->n_slots - 1);
    for (; v->slots[i].next != 0; i = (i + 1) & (v->n_slots - 1)) {
        const int32_t symbol = v->slots[i].next - 1;
        if (v->slots[i].hash == hash && llmi_symbol_size(v, symbol) == n &&
            memcmp(v->text + v->text_at[symbol], text, n) == 0) {
            break;
        }
    }
    return &v->slots[i];
}
static int32_t llmi_find(const struct llmi_vocab * v, const char * text, size_t n) { // LLMI_NONE: there is none
    return llmi_slot(v, text, n, llmi_hash(text, n))->next - 1;
}
static int32_t llmi_find_token(const struct llmi_vocab * v, const char * text, size_t n) {
    const int32_t symbol = llmi_find(v, text, n);
    return symbol < v->n_tokens ? symbol : LLMI_NONE;
}

// where the search for it begins
static uint32_t llmi_merge_at(const struct llmi_vocab * v, int32_t left, int32_t right) {
    return llmi_hash_pair(left, right) & (v->n_merge_slots - 1);
}
static struct llmi_merge * llmi_merge_slot(const struct llmi_vocab * v, int32_t left, int32_t right) {
    uint32_t i = llmi_merge_at(v, left, right);
    while (v->merges[i].rank != 0 && (v->merges[i].left != left || v->merges[i].right != right)) {
        i = (i + 1) & (v->n_merge_slots - 1);
    }
    return &v->merges[i];
}

static bool llmi_is_special(const struct llmi_vocab * v, int32_t token) {
    return v->type[token] == LLMI_CONTROL || v->type[token] == LLMI_UNKNOWN || v->type[token] == LLMI_USER_DEFINED;
}

// Whether a text may become this symbol by merging: "</" and "s>" must not make the control token </s>.
static bool llmi_is_of_text(const struct llmi_vocab * v, int32_t symbol) {
    return symbol != LLMI_NONE &&
           (symbol >= v->n_tokens ||
               (v->type[symbol] != LLMI_CONTROL && v->type[symbol] != LLMI_UNKNOWN && v->type[symbol] != LLMI_BYTE));
}
static int32_t llmi_find_of_text(const struct llmi_vocab * v, const char * text, size_t n) {
    const int32_t token = llmi_find_token(v, text, n);
    return llmi_is_of_text(v, token) ? token : LLMI_NONE;
}

// ---- the 256 characters for bytes in byte-level BPE ----

static void llmi_byte_chars(struct llmi_vocab * v) {
    uint16_t next = 0x100; // for bytes whose number is no printable character
    for (int b = 0; b < 256; ++b) {
        const bool is_printable = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b != 0xAD);
        v->char_of_byte[b] = is_printable ? (uint16_t) b : next++;
        v->byte_of_char[v->char_of_byte[b]] = (int16_t) b;
    }
}

// Writes the bytes that the characters of `text` stand for, and other characters unchanged. Returns the number of
// bytes.
static size_t llmi_bytes_of(const struct llmi_vocab * v, const char * text, size_t n, char * out) {
    size_t n_out = 0, length;
    for (size_t i = 0; i < n; i += length) {
        const uint32_t c = llmi_utf8_next(text + i, n - i, &length);
        if (c < LLMI_BYTE_CHARS && v->byte_of_char[c] != LLMI_NONE) {
            out[n_out++] = (char) v->byte_of_char[c];
        } else {
            memcpy(out + n_out, text + i, length);
            n_out += length;
        }
    }
    return n_out;
}

// ---- pieces: bytes that tokens add to a text ----

static const char llmi_blank[] = "\xE2\x96\x81"; // U+2581 stands for a blank in SentencePiece and WordPiece

// Value of a byte token's text, <0x0A>; -1 for another text.
static int llmi_byte_of_text(const char * text, size_t n) {
    if (n != 6 || memcmp(text, "<0x", 3) != 0 || text[5] != '>') { return -1; }
    int value = 0;
    for (int i = 3; i < 5; ++i) {
        const char *digits = "0123456789ABCDEFabcdef", *at = strchr(digits, text[i]);
        if (at == NULL || text[i] == '\0') { return -1; }
        value = 16 * value + (int) (at - digits >= 16 ? at - digits - 6 : at - digits);
    }
    return value;
}

static size_t llmi_unblank(const char * text, size_t n, char * out) {
    size_t n_out = 0;
    for (size_t i = 0; i < n;) {
        const bool is_blank = n - i >= 3 && memcmp(text + i, llmi_blank, 3) == 0;
        out[n_out++] = is_blank ? ' ' : text[i];
        i += is_blank ? 3 : 1;
    }
    return n_out;
}

static size_t llmi_make_piece(const struct llmi_vocab * v, int32_t token, char * out) {
    const char * text = v->text + v->text_at[token];
    const size_t n = llmi_symbol_size(v, token);
    const int byte = v->type[token] == LLMI_BYTE ? llmi_byte_of_text(text, n) : -1;
    if (byte >= 0) {
        *out = (char) byte;
        return 1;
    }
    if (llmi_is_special(v, token)) {
        memcpy(out, text, n);
        return n;
    }
    return v->kind == LLMI_BPE ? llmi_bytes_of(v, text, n, out) : llmi_unblank(text, n, out);
}

static gcuda_status llmi_make_pieces(struct llmi_vocab * v, struct gcuda_context * arena) {
    LLMI_TRY(llmi_made(v->piece = LLMI_NEW(arena, char, v->text_at[v->n_tokens])));
    LLMI_TRY(llmi_made(v->piece_at = LLMI_NEW(arena, uint32_t, v->n_tokens + 1)));
    for (int32_t i = 0; i < v->n_tokens; ++i) {
        v->piece_at[i + 1] = v->piece_at[i] + (uint32_t) llmi_make_piece(v, i, v->piece + v->piece_at[i]);
        v->max_piece = (int32_t) llmi_max(v->max_piece, (int64_t) llmi_symbol_size(v, i));
    }
    return GCUDA_STATUS_SUCCESS;
}

// ---- special tokens, ends ----

static gcuda_status llmi_index_special(struct llmi_vocab * v) {
    for (int32_t i = 0; i < v->n_tokens; ++i) {
        const size_t n = llmi_symbol_size(v, i);
        if (!llmi_is_special(v, i)) { continue; }
        if (n > 255) {
            return llmi_fail(
                GCUDA_STATUS_UNSUPPORTED, "special token %d has %zu bytes, at most 255 are supported", i, n);
        }
        v->special_lengths[(unsigned char) v->text[v->text_at[i]]][n / 64] |= (uint64_t) 1 << n % 64;
    }
    return GCUDA_STATUS_SUCCESS;
}

static void llmi_set_end(struct llmi_vocab * v, int32_t token) {
    if (token >= 0 && token < v->n_tokens) { v->is_end[token] = true; }
}

// Tokens that end an answer if they are control tokens, besides the tokens that the file names.
static void llmi_find_ends(struct llmi_vocab * v) {
    static const char * const texts[] = {
        "<|eot_id|>",
        "<|im_end|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<|flush|>",
        "<|calls|>",
        "<end_of_turn>",
        "<|endoftext|>",
        "</s>",
        "<|eom_id|>",
        "<EOT>",
        "_<EOT>",
        "[EOT]",
        "[EOS]",
        "<|end_of_text|>",
        "<end_of_utterance>",
        "<eos>",
        "<|fim_pad|>",
        "<|repo_name|>",
        "<|file_sep|>",
    };
    const bool is_harmony = llmi_find_token(v, "<|return|>", 10) >= 0 && llmi_find_token(v, "<|call|>", 8) >= 0;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; ++i) {
        const int32_t token = llmi_find_token(v, texts[i], strlen(texts[i]));
        if (token < 0 || !llmi_is_special(v, token)) { continue; }
        v->type[token] = LLMI_CONTROL; // of user-defined ones: in the text of a stranger they would end the answer
        v->is_end[token] = !(is_harmony && strcmp(texts[i], "<|end|>") == 0); // there it ends a message, not the answer
    }
    llmi_set_end(v, v->eos);
}

// ---- filling the tables ----

// Adds a text as the next symbol. A second equal text is an error.
static gcuda_status llmi_add_text(struct llmi_vocab * v, int32_t symbol, const char * text, size_t n, uint32_t hash) {
    struct llmi_text_slot * slot = llmi_slot(v, text, n, hash);
    if (slot->next != 0) {
        return llmi_fail(GCUDA_STATUS_INVALID_DATA, "tokens %d and %d have the same text '%.*s'", slot->next - 1,
            symbol, (int) llmi_min((int64_t) n, 64), text);
    }
    memcpy(v->text + v->text_at[symbol], text, n);
    v->text_at[symbol + 1] = v->text_at[symbol] + (uint32_t) n;
    slot->hash = hash;
    slot->next = symbol + 1;
    return GCUDA_STATUS_SUCCESS;
}

// Grows the tables to this number of symbols and bytes of text and keeps their contents. The old ones stay in the
// arena.
static gcuda_status llmi_symbols_alloc(
    struct llmi_vocab * v, struct gcuda_context * arena, size_t n_symbols, size_t n_bytes) {
    const struct llmi_text_slot * old_slots = v->slots;
    const char * old_text = v->text;
    const uint32_t *old_at = v->text_at, n_old = v->n_slots;
    LLMI_TRY(llmi_made(v->text = LLMI_NEW(arena, char, n_bytes)));
    LLMI_TRY(llmi_made(v->text_at = LLMI_NEW(arena, uint32_t, n_symbols + 1)));
    v->n_slots = llmi_slots_for(n_symbols);
    LLMI_TRY(llmi_made(v->slots = LLMI_NEW(arena, struct llmi_text_slot, v->n_slots)));
    v->max_symbols = (int32_t) n_symbols;
    v->max_text = (uint32_t) n_bytes;
    if (old_slots == NULL) { return GCUDA_STATUS_SUCCESS; }
    memcpy(v->text, old_text, old_at[v->n_symbols]);
    memcpy(v->text_at, old_at, ((size_t) v->n_symbols + 1) * sizeof *old_at);
    for (uint32_t i = 0; i < n_old; ++i) {
        uint32_t k = old_slots[i].hash & (v->n_slots - 1);
        while (old_slots[i].next != 0 && v->slots[k].next != 0) { k = (k + 1) & (v->n_slots - 1); }
        if (old_slots[i].next != 0) { v->slots[k] = old_slots[i]; }
    }
    return GCUDA_STATUS_SUCCESS;
}

// Symbol of a text in a merge; added if missing. In most files all are tokens, so memory for others grows on demand.
static gcuda_status llmi_intern(
    struct llmi_vocab * v, struct gcuda_context * arena, const char * text, size_t n, uint32_t hash, int32_t * symbol) {
    *symbol = llmi_slot(v, text, n, hash)->next - 1;
    if (*symbol != LLMI_NONE) { return GCUDA_STATUS_SUCCESS; }
    const size_t n_bytes = v->text_at[v->n_symbols] + n;
    if (n_bytes > UINT32_MAX / 4) {
        return llmi_fail(GCUDA_STATUS_INVALID_DATA,
            "tokenizer.ggml.merges: texts of %zu bytes, at most %lu are supported", n_bytes,
            (unsigned long) UINT32_MAX / 4);
    }
    if (v->n_symbols == v->max_symbols || n_bytes > v->max_text) {
        LLMI_TRY(llmi_symbols_alloc(v, arena, 2 * (size_t) v->n_symbols, 2 * n_bytes));
    }
    *symbol = v->n_symbols;
    LLMI_TRY(llmi_add_text(v, v->n_symbols, text, n, hash)); // is not there yet
    ++v->n_symbols;
    return GCUDA_STATUS_SUCCESS;
}

static void llmi_bind_bytes(struct llmi_vocab * v) {
    for (int b = 0; b < 256; ++b) {
        char text[8];
        if (v->kind == LLMI_BPE) {
            v->byte_symbol[b] = llmi_find(v, text, llmi_utf8_put(v->char_of_byte[b], text));
            continue;
        }
        snprintf(text, sizeof text, "<0x%02X>", (unsigned) b);
        v->byte_symbol[b] = llmi_find_token(v, text, 6);
        if (v->byte_symbol[b] == LLMI_NONE) {
            text[0] = (char) b;
            v->byte_symbol[b] = llmi_find_token(v, text, 1);
        }
    }
}

// ---- reading from the file, which is untrusted: every number, type and count is checked ----

struct llmi_file {
    struct gcuda_gguf_context * g;
    const char * arch;
    gcuda_log_callback log;
    void * log_user;
};

LLMI_PRINTF(2, 3) static void llmi_warn(const struct llmi_file * f, const char * fmt, ...) {
    char text[512];
    if (f->log == NULL) { return; }
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    f->log(GCUDA_LOG_LEVEL_WARN, text, f->log_user);
}

// An array of strings: its key's number and length. A key that does not exist: number -1, length 0.
static gcuda_status llmi_string_array(
    const struct llmi_file * f, const char * key, bool is_required, int64_t * id, uint64_t * n) {
    *n = 0;
    *id = gcuda_gguf_find_key(f->g, key);
    if (*id < 0) {
        return is_required ? llmi_fail(GCUDA_STATUS_INVALID_DATA, "the key '%s' is missing", key)
                           : GCUDA_STATUS_SUCCESS;
    }
    if (gcuda_gguf_get_arr_type(f->g, *id) != GCUDA_GGUF_TYPE_STRING) {
        return llmi_fail(GCUDA_STATUS_INVALID_DATA, "the key '%s' is no array of strings", key);
    }
    *n = gcuda_gguf_get_arr_n(f->g, *id);
    return GCUDA_STATUS_SUCCESS;
}

enum { LLMI_EMPTY_TEXT = 24 }; // bytes of [EMPTY_N], the name of an empty token

static uint64_t llmi_string_bytes(const struct llmi_file * f, int64_t id, uint64_t n) {
    uint64_t sum = 0;
    const char * text;
    for (uint64_t i = 0; i < n; ++i) {
        size_t size = 0;
        if (gcuda_gguf_get_arr_str(f->g, id, i, &text, &size) == GCUDA_STATUS_SUCCESS) {
            sum += size > 0 ? size : (size_t) LLMI_EMPTY_TEXT;
        }
    }
    return sum;
}

// 4-byte numbers, at least one per token. *data NULL: no such key.
static gcuda_status llmi_token_array(
    const struct llmi_file * f, const char * key, enum gcuda_gguf_type type, int32_t n_tokens, const void ** data) {
    const int64_t id = gcuda_gguf_find_key(f->g, key);
    uint64_t n = 0;
    *data = NULL;
    if (id < 0) { return GCUDA_STATUS_SUCCESS; }
    LLMI_TRY(gcuda_gguf_get_arr_data(f->g, id, type, data, &n));
    if (n >= (uint64_t) n_tokens) { return GCUDA_STATUS_SUCCESS; }
    return llmi_fail(GCUDA_STATUS_INVALID_DATA, "the key '%s' has %llu elements for %d tokens", key,
        (unsigned long long) n, n_tokens);
}

static gcuda_status llmi_load_id(
    const struct llmi_file * f, const struct llmi_vocab * v, const char * key, int32_t * id) {
    int64_t value = *id;
    LLMI_TRY(gcuda_gguf_get_int(f->g, key, false, INT64_MIN, INT64_MAX, &value));
    if (value < 0 || value >= v->n_tokens) {
        if (value != *id) {
            llmi_warn(f, "%s is %lld, which is none of %d tokens: ignored", key, (long long) value, v->n_tokens);
        }
        value = LLMI_NONE;
    }
    *id = (int32_t) value;
    return GCUDA_STATUS_SUCCESS;
}

static gcuda_status llmi_load_ids(const struct llmi_file * f, struct llmi_vocab * v) {
    v->bos = v->kind == LLMI_SPM ? 1 : v->kind == LLMI_WPM ? 101 : LLMI_NONE;
    v->eos = v->kind == LLMI_SPM ? 2 : LLMI_NONE;
    v->unknown = v->kind == LLMI_SPM ? 0 : v->kind == LLMI_WPM ? 100 : LLMI_NONE;
    v->separator = v->kind == LLMI_WPM ? 102 : LLMI_NONE;
    v->add_bos = v->kind != LLMI_BPE || v->pre_row->add_bos;
    v->add_separator = v->kind == LLMI_WPM;
    v->add_space = v->kind == LLMI_SPM;
    LLMI_TRY(llmi_load_id(f, v, "tokenizer.ggml.bos_token_id", &v->bos));
    if (v->kind == LLMI_WPM) { LLMI_TRY(llmi_load_id(f, v, "tokenizer.ggml.cls_token_id", &v->bos)); }
    LLMI_TRY(llmi_load_id(f, v, "tokenizer.ggml.eos_token_id", &v->eos));
    LLMI_TRY(llmi_load_id(f, v, "tokenizer.ggml.unknown_token_id", &v->unknown));
    LLMI_TRY(llmi_load_id(f, v, "tokenizer.ggml.seperator_token_id", &v->separator));
    if (v->kind != LLMI_WPM) {
        LLMI_TRY(gcuda_gguf_get_bool(f->g, "tokenizer.ggml.add_bos_token", false, &v->add_bos));
    }
    LLMI_TRY(gcuda_gguf_get_bool(f->g, "tokenizer.ggml.add_eos_token", false, &v->add_eos));
    LLMI_TRY(gcuda_gguf_get_bool(f->g, "tokenizer.ggml.add_space_prefix", false, &v->add_space));
    v->lowercase = true;
    LLMI_TRY(gcuda_gguf_get_bool(f->g, "tokenizer.ggml.normalizer.lowercase", false, &v->lowercase));
    bool strip_accents = v->lowercase;
    LLMI_TRY(gcuda_gguf_get_bool(f->g, "tokenizer.ggml.normalizer.strip_accents", false, &strip_accents));
    if (strip_accents == v->lowercase) { return GCUDA_STATUS_SUCCESS; }
    return llmi_fail(
        GCUDA_STATUS_UNSUPPORTED, "a WordPiece tokenizer that changes capitals or accents alone, not both");
}

// eot and eom: further ends.
static gcuda_status llmi_load_ends(const struct llmi_file * f, struct llmi_vocab * v) {
    int32_t eot = LLMI_NONE, eom = LLMI_NONE;
    LLMI_TRY(llmi_load_id(f, v, "tokenizer.ggml.eot_token_id", &eot));
    LLMI_TRY(llmi_load_id(f, v, "tokenizer.ggml.eom_token_id", &eom));
    llmi_find_ends(v);
    llmi_set_end(v, eot);
    llmi_set_end(v, eom);
    return GCUDA_STATUS_SUCCESS;
}

static gcuda_status llmi_load_kind(const struct llmi_file * f, struct llmi_vocab * v) {
    static const char * const names[] = { "gpt2", "llama", "bert" }; // in the order of enum llmi_vocab_kind
    const char *name = NULL, *pre = NULL;
    LLMI_TRY(gcuda_gguf_get_str(f->g, "tokenizer.ggml.model", true, &name));
    LLMI_TRY(gcuda_gguf_get_str(f->g, "tokenizer.ggml.pre", false, &pre));
    int kind = 0;
    while (kind < 3 && strcmp(name, names[kind]) != 0) { ++kind; }
    if (kind == 3) {
        return llmi_fail(GCUDA_STATUS_UNSUPPORTED,
            "tokenizer.ggml.model is '%.64s'; supported are gpt2 (byte pairs), llama (SentencePiece) "
            "and bert (WordPiece)",
            name);
    }
    v->kind = (enum llmi_vocab_kind) kind;
    if (v->kind != LLMI_BPE) { return GCUDA_STATUS_SUCCESS; }
    if (pre == NULL) {
        llmi_warn(
            f, "the file has no tokenizer.ggml.pre: text may be split in another way than the model was trained with");
    }
    for (size_t i = 0; i < sizeof llmi_pre_rows / sizeof *llmi_pre_rows; ++i) {
        if (strcmp(pre ? pre : "default", llmi_pre_rows[i].name) == 0) { v->pre_row = &llmi_pre_rows[i]; }
    }
    if (v->pre_row == NULL) {
        return llmi_fail(GCUDA_STATUS_UNSUPPORTED,
            "tokenizer.ggml.pre is '%.64s', a way to split text that is not "
            "supported: the model would read other tokens than it was trained with",
            pre);
    }
    llmi_pre_compile(&v->pre, v->pre_row);
    llmi_byte_chars(v);
    return GCUDA_STATUS_SUCCESS;
}

// Tables for n tokens of n_bytes together and n_merges merges.
static gcuda_status llmi_vocab_alloc(
    struct llmi_vocab * v, struct gcuda_context * arena, uint64_t n, uint64_t n_merges, uint64_t n_bytes) {
    if (n < 1 || n > 1 << 24 || n_merges > 1 << 24 || n_bytes > UINT32_MAX / 4) {
        return llmi_fail(GCUDA_STATUS_INVALID_DATA,
            "a vocabulary of %llu tokens, %llu merges and %llu bytes; supported are 1 to %d, %d and %lu",
            (unsigned long long) n, (unsigned long long) n_merges, (unsigned long long) n_bytes, 1 << 24, 1 << 24,
            (unsigned long) UINT32_MAX / 4);
    }
    v->n_tokens = v->n_symbols = (int32_t) n;
    LLMI_TRY(llmi_symbols_alloc(v, arena, (size_t) n, (size_t) n_bytes));
    v->n_merge_slots = llmi_slots_for((size_t) n_merges);
    LLMI_TRY(llmi_made(v->merges = LLMI_NEW(arena, struct llmi_merge, v->n_merge_slots)));
    LLMI_TRY(llmi_made(v->type = LLMI_NEW(arena, uint8_t, n)));
    return llmi_made(v->is_end = LLMI_NEW(arena, bool, n));
}

static gcuda_status llmi_load_types(const struct llmi_file * f, struct llmi_vocab * v) {
    const void *types = NULL, *scores = NULL;
    LLMI_TRY(llmi_token_array(f, "tokenizer.ggml.token_type", GCUDA_GGUF_TYPE_INT32, v->n_tokens, &types));
    for (int32_t i = 0; i < v->n_tokens; ++i) {
        const int32_t type = types ? ((const int32_t *) types)[i] : LLMI_NORMAL;
        v->type[i] = (uint8_t) (type < 0 || type > LLMI_BYTE ? LLMI_UNDEFINED : type);
    }
    LLMI_TRY(llmi_token_array(f, "tokenizer.ggml.scores", GCUDA_GGUF_TYPE_FLOAT32, v->n_tokens, &scores));
    for (int32_t i = 0; scores != NULL && v->score != NULL && i < v->n_tokens; ++i) {
        v->score[i] = ((const float *) scores)[i];
    }
    return GCUDA_STATUS_SUCCESS;
}

// The hash table is larger than the processor's cache. Several texts are looked up together, so that cache misses
// overlap.
enum { LLMI_LOAD_BATCH = 32 };

static gcuda_status llmi_load_texts(const struct llmi_file * f, struct llmi_vocab * v, int64_t tokens) {
    struct {
        const char * text;
        size_t n;
        uint32_t hash;
        char empty[LLMI_EMPTY_TEXT];
    } batch[LLMI_LOAD_BATCH];
    for (int32_t first = 0, n; first < v->n_tokens; first += n) {
        n = (int32_t) llmi_min(v->n_tokens - first, LLMI_LOAD_BATCH);
        for (int32_t i = 0; i < n; ++i) {
            LLMI_TRY(gcuda_gguf_get_arr_str(f->g, tokens, (uint64_t) (first + i), &batch[i].text, &batch[i].n));
            if (batch[i].n == 0) {
                batch[i].n = (size_t) snprintf(batch[i].empty, sizeof batch[i].empty, "[EMPTY_%d]", first + i);
                batch[i].text = batch[i].empty;
            }
            batch[i].hash = llmi_hash(batch[i].text, batch[i].n);
            LLMI_PREFETCH(&v->slots[batch[i].hash & (v->n_slots - 1)]);
        }
        for (int32_t i = 0; i < n; ++i) {
            LLMI_TRY(llmi_add_text(v, first + i, batch[i].text, batch[i].n, batch[i].hash));
        }
    }
    return GCUDA_STATUS_SUCCESS;
}

enum { LLMI_MERGE_BYTES = 512 }; // of a line at most
struct llmi_merge_line {
    const char * text;
    size_t n, n_left;
    uint32_t left_hash, right_hash, both_hash;
    int32_t left, right; // symbols
};

static gcuda_status llmi_read_merge(
    const struct llmi_file * f, const struct llmi_vocab * v, int64_t merges, uint64_t i, struct llmi_merge_line * l) {
    LLMI_TRY(gcuda_gguf_get_arr_str(f->g, merges, i, &l->text, &l->n));
    const char * blank = l->n < 3 ? NULL : (const char *) memchr(l->text + 1, ' ', l->n - 1);
    l->n_left = blank ? (size_t) (blank - l->text) : 0;
    if (blank == NULL || l->n_left + 1 == l->n || l->n > LLMI_MERGE_BYTES) {
        return llmi_fail(GCUDA_STATUS_INVALID_DATA,
            "tokenizer.ggml.merges: line %llu is not two texts with a blank between", (unsigned long long) i);
    }
    const uint32_t left = llmi_hash_on(LLMI_HASH_BEGIN, l->text, l->n_left);
    l->left_hash = llmi_hash_end(left);
    l->right_hash = llmi_hash(blank + 1, l->n - l->n_left - 1);
    l->both_hash = llmi_hash_end(llmi_hash_on(left, blank + 1, l->n - l->n_left - 1));
    LLMI_PREFETCH(&v->slots[l->left_hash & (v->n_slots - 1)]);
    LLMI_PREFETCH(&v->slots[l->right_hash & (v->n_slots - 1)]);
    LLMI_PREFETCH(&v->slots[l->both_hash & (v->n_slots - 1)]);
    return GCUDA_STATUS_SUCCESS;
}

static gcuda_status llmi_add_merge(
    struct llmi_vocab * v, struct gcuda_context * arena, const struct llmi_merge_line * l, int32_t rank) {
    char both[LLMI_MERGE_BYTES];
    struct llmi_merge * merge = llmi_merge_slot(v, l->left, l->right);
    if (merge->rank != 0) { return GCUDA_STATUS_SUCCESS; } // the first rank counts
    merge->left = l->left;
    merge->right = l->right;
    merge->rank = rank;
    memcpy(both, l->text, l->n_left);
    memcpy(both + l->n_left, l->text + l->n_left + 1, l->n - l->n_left - 1);
    return llmi_intern(v, arena, both, l->n - 1, l->both_hash, &merge->result);
}

static gcuda_status llmi_load_merges(const struct llmi_file * f, struct llmi_vocab * v, struct gcuda_context * arena,
    int64_t merges, uint64_t n_merges) {
    struct llmi_merge_line lines[LLMI_LOAD_BATCH];
    for (uint64_t first = 0; first < n_merges; first += LLMI_LOAD_BATCH) {
        const uint64_t n = (uint64_t) llmi_min((int64_t) (n_merges - first), LLMI_LOAD_BATCH);
        for (uint64_t i = 0; i < n; ++i) { LLMI_TRY(llmi_read_merge(f, v, merges, first + i, &lines[i])); }
        for (uint64_t i = 0; i < n; ++i) {
            struct llmi_merge_line * l = &lines[i];
            LLMI_TRY(llmi_intern(v, arena, l->text, l->n_left, l->left_hash, &l->left));
            LLMI_TRY(llmi_intern(v, arena, l->text + l->n_left + 1, l->n - l->n_left - 1, l->right_hash, &l->right));
            LLMI_PREFETCH(&v->merges[llmi_merge_at(v, l->left, l->right)]);
        }
        for (uint64_t i = 0; i < n; ++i) { LLMI_TRY(llmi_add_merge(v, arena, &lines[i], (int32_t) (first + i) + 1)); }
    }
    return GCUDA_STATUS_SUCCESS;
}

struct llmi_template;
static const struct llmi_template * llmi_template_of(const char * text);
static const char * llmi_template_part(const struct llmi_template * t, int i);

// The marks of the file's chat template are control tokens. Some files have them as user-defined tokens, which a
// stranger's text could hold, or as usual ones, which the template's text would not become.
static gcuda_status llmi_load_marks(const struct llmi_file * f, struct llmi_vocab * v) {
    const char *template_text = NULL, *part;
    LLMI_TRY(gcuda_gguf_get_str(f->g, "tokenizer.chat_template", false, &template_text));
    const struct llmi_template * t = llmi_template_of(template_text);
    for (int i = 0; t != NULL && (part = llmi_template_part(t, i)) != NULL; ++i) {
        for (const char * at = strpbrk(part, "<["); at != NULL; at = strpbrk(at + 1, "<[")) {
            const char * end = strchr(at, *at == '<' ? '>' : ']');
            const int32_t token = end ? llmi_find_token(v, at, (size_t) (end - at) + 1) : LLMI_NONE;
            if (token == LLMI_NONE || v->type[token] == LLMI_CONTROL) { continue; }
            llmi_warn(f,
                "token %d, %.*s, is a mark of the chat template: taken as a control token, which the file "
                "does not call it",
                token, (int) (end - at) + 1, at);
            v->type[token] = LLMI_CONTROL;
        }
    }
    return GCUDA_STATUS_SUCCESS;
}

static gcuda_status llmi_vocab_load(struct llmi_vocab * v, const struct llmi_file * f, struct gcuda_context * arena) {
    int64_t tokens, merges = -1;
    uint64_t n, n_merges = 0;
    LLMI_TRY(llmi_load_kind(f, v));
    LLMI_TRY(llmi_string_array(f, "tokenizer.ggml.tokens", true, &tokens, &n));
    if (v->kind == LLMI_BPE) { LLMI_TRY(llmi_string_array(f, "tokenizer.ggml.merges", true, &merges, &n_merges)); }
    LLMI_TRY(llmi_vocab_alloc(v, arena, n, n_merges, llmi_string_bytes(f, tokens, n)));
    if (v->kind == LLMI_SPM) { LLMI_TRY(llmi_made(v->score = LLMI_NEW(arena, float, n))); }
    LLMI_TRY(llmi_load_texts(f, v, tokens));
    LLMI_TRY(llmi_load_merges(f, v, arena, merges, n_merges));
    LLMI_TRY(llmi_load_types(f, v));
    LLMI_TRY(llmi_load_marks(f, v));
    LLMI_TRY(llmi_load_ids(f, v));
    LLMI_TRY(llmi_load_ends(f, v));
    llmi_bind_bytes(v);
    LLMI_TRY(llmi_index_special(v));
    return llmi_make_pieces(v, arena);
}

// =====================================================================================================
// >>tokenize   text to tokens and back
// =====================================================================================================

struct llmi_range {
    size_t first, end;
}; // bytes

struct llmi_tokenizer { // one call
    const struct llmi_vocab * v;
    struct gcuda_context * arena;
    const struct llmi_range * plain; // ranges of the text in which control tokens are not recognised
    size_t n_plain;
    bool parse_special;
    struct llmi_out * out;
};

static void llmi_emit(struct llmi_tokenizer * t, int32_t token) {
    if (token >= 0 && token < t->v->n_tokens) { llmi_put(t->out, &token, 1); }
}

// ---- merging: the pair of neighbours with the lowest rank first; of equal ones the left ----

struct llmi_node { // a symbol of the piece, in a list
    int32_t prev, next, symbol;
    uint32_t at, n; // its bytes; n 0: it was merged into the previous one
};
struct llmi_candidate {
    double order;         // rank; or minus the score
    int32_t left, symbol; // node; symbol of both joined
    uint32_t n;           // bytes of both; another sum: one of them has changed
};
struct llmi_merger {
    const struct llmi_vocab * v;
    const char * text;
    struct llmi_node * nodes;
    struct llmi_candidate * heap;
    int32_t n_nodes, n_heap;
};

static bool llmi_before(const struct llmi_candidate * a, const struct llmi_candidate * b) {
    return a->order != b->order ? a->order < b->order : a->left < b->left;
}

static void llmi_heap_push(struct llmi_merger * m, struct llmi_candidate c) {
    int32_t i = m->n_heap++;
    for (; i > 0 && llmi_before(&c, &m->heap[(i - 1) / 2]); i = (i - 1) / 2) { m->heap[i] = m->heap[(i - 1) / 2]; }
    m->heap[i] = c;
}

static struct llmi_candidate llmi_heap_pop(struct llmi_merger * m) {
    const struct llmi_candidate top = m->heap[0], c = m->heap[--m->n_heap];
    int32_t i = 0;
    for (int32_t child = 1; child < m->n_heap; child = 2 * i + 1) {
        if (child + 1 < m->n_heap && llmi_before(&m->heap[child + 1], &m->heap[child])) { ++child; }
        if (!llmi_before(&m->heap[child], &c)) { break; }
        m->heap[i] = m->heap[child];
        i = child;
    }
    m->heap[i] = c;
    return top;
}

// Symbol of two neighbours joined; false: the vocabulary has no merge.
static bool llmi_joins(const struct llmi_merger * m, const struct llmi_node * left, const struct llmi_node * right,
    struct llmi_candidate * c) {
    if (m->v->kind == LLMI_BPE) {
        const struct llmi_merge * merge = llmi_merge_slot(m->v, left->symbol, right->symbol);
        c->symbol = merge->result;
        c->order = merge->rank;
        return merge->rank != 0 && llmi_is_of_text(m->v, merge->result);
    }
    c->symbol = llmi_find_of_text(m->v, m->text + left->at, left->n + right->n);
    if (c->symbol == LLMI_NONE) { return false; }
    c->order = -(double) m->v->score[c->symbol];
    return true;
}

static void llmi_offer(struct llmi_merger * m, int32_t left) {
    struct llmi_candidate c;
    const int32_t right = left < 0 ? LLMI_NONE : m->nodes[left].next;
    if (right < 0 || !llmi_joins(m, &m->nodes[left], &m->nodes[right], &c)) { return; }
    c.left = left;
    c.n = m->nodes[left].n + m->nodes[right].n;
    llmi_heap_push(m, c);
}

static void llmi_merge_all(struct llmi_merger * m) {
    for (int32_t i = 0; i + 1 < m->n_nodes; ++i) { llmi_offer(m, i); }
    while (m->n_heap > 0) {
        const struct llmi_candidate c = llmi_heap_pop(m);
        struct llmi_node * left = &m->nodes[c.left];
        struct llmi_node * right = left->n > 0 && left->next >= 0 ? &m->nodes[left->next] : NULL;
        if (right == NULL || left->n + right->n != c.n) { continue; }
        left->symbol = c.symbol;
        left->n = c.n;
        left->next = right->next;
        right->n = 0;
        if (left->next >= 0) { m->nodes[left->next].prev = c.left; }
        llmi_offer(m, left->prev);
        llmi_offer(m, c.left);
    }
}

// Memory for pieces of up to n symbols: each merge removes one symbol and adds at most two candidates.
static gcuda_status llmi_merger_init(struct llmi_merger * m, struct llmi_tokenizer * t, size_t n) {
    memset(m, 0, sizeof *m);
    m->v = t->v;
    LLMI_TRY(llmi_made(m->nodes = LLMI_NEW(t->arena, struct llmi_node, n)));
    return llmi_made(m->heap = LLMI_NEW(t->arena, struct llmi_candidate, 3 * n));
}

static void llmi_merger_add(struct llmi_merger * m, int32_t symbol, uint32_t at, uint32_t n) {
    const struct llmi_node node = { m->n_nodes - 1, LLMI_NONE, symbol, at, n };
    if (m->n_nodes > 0) { m->nodes[m->n_nodes - 1].next = m->n_nodes; }
    m->nodes[m->n_nodes++] = node;
}

// ---- byte-level BPE ----

// Emits a symbol: itself if it is a token, else those of its characters that are tokens.
static void llmi_emit_symbol(struct llmi_tokenizer * t, int32_t symbol) {
    const struct llmi_vocab * v = t->v;
    if (symbol < v->n_tokens) {
        llmi_emit(t, symbol);
        return;
    }
    const char * text = v->text + v->text_at[symbol];
    size_t length;
    for (size_t i = 0, n = llmi_symbol_size(v, symbol); i < n; i += length) {
        (void) llmi_utf8_next(text + i, n - i, &length);
        llmi_emit(t, llmi_find_token(v, text + i, length));
    }
}

// Token that equals a whole piece; LLMI_NONE: none.
static int32_t llmi_whole_piece(const struct llmi_vocab * v, const char * text, size_t n) {
    char mapped[512];
    size_t n_mapped = 0;
    if (!v->pre_row->whole || 2 * n > sizeof mapped) { return LLMI_NONE; }
    for (size_t i = 0; i < n; ++i) {
        n_mapped += llmi_utf8_put(v->char_of_byte[(unsigned char) text[i]], mapped + n_mapped);
    }
    return llmi_find_of_text(v, mapped, n_mapped);
}

static void llmi_bpe_piece(struct llmi_tokenizer * t, struct llmi_merger * m, const char * text, size_t n) {
    const int32_t whole = llmi_whole_piece(t->v, text, n);
    if (whole != LLMI_NONE) {
        llmi_emit(t, whole);
        return;
    }
    m->n_nodes = m->n_heap = 0;
    for (size_t i = 0; i < n; ++i) {
        const int32_t symbol = t->v->byte_symbol[(unsigned char) text[i]];
        if (symbol != LLMI_NONE) { llmi_merger_add(m, symbol, (uint32_t) i, 1); }
    }
    llmi_merge_all(m);
    for (int32_t i = m->n_nodes > 0 ? 0 : LLMI_NONE; i >= 0; i = m->nodes[i].next) {
        llmi_emit_symbol(t, m->nodes[i].symbol);
    }
}

static gcuda_status llmi_chars_init(struct llmi_chars * c, struct llmi_tokenizer * t, const char * text, size_t n) {
    LLMI_TRY(llmi_made(c->c = LLMI_NEW(t->arena, uint32_t, n)));
    LLMI_TRY(llmi_made(c->bits = LLMI_NEW(t->arena, uint32_t, n)));
    LLMI_TRY(llmi_made(c->at = LLMI_NEW(t->arena, uint32_t, n + 1)));
    LLMI_TRY(llmi_made(c->is_first = LLMI_NEW(t->arena, bool, n)));
    size_t length;
    c->n = 0;
    for (size_t i = 0; i < n; i += length) {
        c->at[c->n] = (uint32_t) i;
        c->c[c->n] = llmi_utf8_next(text + i, n - i, &length);
        c->bits[c->n] = llmi_char_bits(c->c[c->n]);
        ++c->n;
    }
    c->at[c->n] = (uint32_t) n;
    return GCUDA_STATUS_SUCCESS;
}

// Length in characters of the piece that begins at character `first`.
static size_t llmi_piece_chars(const struct llmi_chars * c, size_t first) {
    size_t end = first + 1;
    while (end < c->n && !c->is_first[end]) { ++end; }
    return end - first;
}

static gcuda_status llmi_bpe(struct llmi_tokenizer * t, const char * text, size_t n) {
    struct llmi_chars c;
    struct llmi_merger m;
    size_t longest = 0;
    LLMI_TRY(llmi_chars_init(&c, t, text, n));
    llmi_split_all(&t->v->pre, &c);
    for (size_t i = 0, k; i < c.n; i += k) {
        k = llmi_piece_chars(&c, i);
        if (c.at[i + k] - c.at[i] > longest) { longest = c.at[i + k] - c.at[i]; }
    }
    LLMI_TRY(llmi_merger_init(&m, t, longest));
    for (size_t i = 0, k; i < c.n; i += k) {
        k = llmi_piece_chars(&c, i);
        llmi_bpe_piece(t, &m, text + c.at[i], c.at[i + k] - c.at[i]);
    }
    return GCUDA_STATUS_SUCCESS;
}

// ---- SentencePiece ----

static void llmi_spm_emit(struct llmi_tokenizer * t, const char * text, const struct llmi_node * node) {
    if (node->symbol != LLMI_NONE) {
        llmi_emit(t, node->symbol);
        return;
    }
    for (uint32_t i = 0; i < node->n; ++i) {
        const int32_t byte = t->v->byte_symbol[(unsigned char) text[node->at + i]];
        llmi_emit(t, byte != LLMI_NONE ? byte : t->v->unknown);
    }
}

static gcuda_status llmi_spm(struct llmi_tokenizer * t, const char * text, size_t n) {
    char * blanked = LLMI_NEW(t->arena, char, 3 * (n + 1));
    struct llmi_merger m;
    size_t n_text = 0, length;
    LLMI_TRY(llmi_made(blanked));
    for (size_t i = t->v->add_space ? 0 : 1; i <= n; ++i) { // i 0: the blank that is added
        const bool is_blank = i == 0 || text[i - 1] == ' ';
        memcpy(blanked + n_text, is_blank ? llmi_blank : text + i - 1, is_blank ? 3 : 1);
        n_text += is_blank ? 3 : 1;
    }
    LLMI_TRY(llmi_merger_init(&m, t, n_text));
    m.text = blanked;
    for (size_t i = 0; i < n_text; i += length) {
        (void) llmi_utf8_next(blanked + i, n_text - i, &length);
        llmi_merger_add(&m, llmi_find_of_text(t->v, blanked + i, length), (uint32_t) i, (uint32_t) length);
    }
    llmi_merge_all(&m);
    for (int32_t i = m.n_nodes > 0 ? 0 : LLMI_NONE; i >= 0; i = m.nodes[i].next) {
        llmi_spm_emit(t, blanked, &m.nodes[i]);
    }
    return GCUDA_STATUS_SUCCESS;
}

// ---- special tokens in a text, then the parts between ----

// Whether bytes [first, end) are outside of the plain ranges.
static bool llmi_is_template(const struct llmi_tokenizer * t, size_t first, size_t end) {
    for (size_t i = 0; i < t->n_plain; ++i) {
        if (first < t->plain[i].end && end > t->plain[i].first) { return false; }
    }
    return true;
}

// The longest special token at byte `at`; LLMI_NONE if there is none.
static int32_t llmi_special_at(
    const struct llmi_tokenizer * t, const char * text, size_t n, size_t at, size_t * length) {
    const uint64_t * lengths = t->v->special_lengths[(unsigned char) text[at]];
    if ((lengths[0] | lengths[1] | lengths[2] | lengths[3]) == 0) { return LLMI_NONE; }
    for (size_t size = (size_t) llmi_min(255, (int64_t) (n - at)); size > 0; --size) {
        if ((lengths[size / 64] >> size % 64 & 1) == 0) { continue; }
        const int32_t token = llmi_find_token(t->v, text + at, size);
        if (token == LLMI_NONE || !llmi_is_special(t->v, token)) { continue; }
        if (t->v->type[token] != LLMI_USER_DEFINED && (!t->parse_special || !llmi_is_template(t, at, at + size))) {
            continue;
        }
        *length = size;
        return token;
    }
    return LLMI_NONE;
}

static gcuda_status llmi_wpm(struct llmi_tokenizer * t, const char * text, size_t n);

static gcuda_status llmi_raw(struct llmi_tokenizer * t, const char * text, size_t n) {
    if (n == 0) { return GCUDA_STATUS_SUCCESS; }
    switch (t->v->kind) {
        case LLMI_BPE: return llmi_bpe(t, text, n);
        case LLMI_SPM: return llmi_spm(t, text, n);
        default: return llmi_wpm(t, text, n);
    }
}

static gcuda_status llmi_parts(struct llmi_tokenizer * t, const char * text, size_t n) {
    size_t first = 0, length = 0;
    for (size_t at = 0; at < n;) {
        const int32_t token = llmi_special_at(t, text, n, at, &length);
        if (token == LLMI_NONE) {
            ++at;
            continue;
        }
        LLMI_TRY(llmi_raw(t, text + first, at - first));
        llmi_emit(t, token);
        first = at = at + length;
    }
    return llmi_raw(t, text + first, n - first);
}

static gcuda_status llmi_tokenize(const struct llmi_vocab * v, const char * text, size_t n,
    const struct llmi_range * plain, size_t n_plain, int flags, struct llmi_out * out) {
    if (n > INT32_MAX / 4) {
        return llmi_fail(
            GCUDA_STATUS_INVALID_ARGUMENT, "a text of %zu bytes; tokenize at most %d at a time", n, INT32_MAX / 4);
    }
    struct llmi_tokenizer t = { v, llmi_arena(0), plain, n_plain, (flags & LLM_PARSE_SPECIAL) != 0, out };
    LLMI_TRY(llmi_made(t.arena));
    if ((flags & LLM_ADD_SPECIAL) != 0 && v->add_bos) { llmi_emit(&t, v->bos); }
    const gcuda_status st = llmi_parts(&t, text, n);
    if ((flags & LLM_ADD_SPECIAL) != 0 && v->add_separator) { llmi_emit(&t, v->separator); }
    if ((flags & LLM_ADD_SPECIAL) != 0 && v->add_eos) { llmi_emit(&t, v->eos); }
    gcuda_free(t.arena);
    return st;
}

// ---- WordPiece ----

enum { LLMI_WORD_CHARS = 100 }; // longer words are unknown to the models: [UNK]

struct llmi_word { // U+2581 and up to LLMI_WORD_CHARS characters
    char text[3 + 4 * LLMI_WORD_CHARS];
    size_t n_bytes, n_chars; // n_chars may be more than fit
};

// Token of the longest prefix of text; *length: its bytes.
static int32_t llmi_longest(const struct llmi_vocab * v, const char * text, size_t n, size_t * length) {
    for (*length = (size_t) llmi_min((int64_t) n, v->max_piece); *length > 0; --*length) {
        const bool is_boundary = *length == n || ((unsigned char) text[*length] & 0xC0) != 0x80;
        const int32_t token = is_boundary ? llmi_find_of_text(v, text, *length) : LLMI_NONE;
        if (token != LLMI_NONE) { return token; }
    }
    return LLMI_NONE;
}

static void llmi_end_word(struct llmi_tokenizer * t, struct llmi_word * word) {
    int32_t tokens[LLMI_WORD_CHARS + 1];
    size_t n = 0, length = 0;
    bool is_known = word->n_chars <= LLMI_WORD_CHARS;
    for (size_t at = 0; is_known && at < word->n_bytes; at += length) {
        const int32_t token = llmi_longest(t->v, word->text + at, word->n_bytes - at, &length);
        // in the text itself
        const bool is_blank = at > 0 && word->n_bytes - at >= 3 && memcmp(word->text + at, llmi_blank, 3) == 0;
        is_known = token != LLMI_NONE && !is_blank;
        if (is_known) { tokens[n++] = token; }
    }
    for (size_t i = 0; is_known && i < n; ++i) { llmi_emit(t, tokens[i]); }
    if (!is_known) { llmi_emit(t, t->v->unknown); }
    word->n_bytes = word->n_chars = 0;
}

static void llmi_add_to_word(struct llmi_word * word, uint32_t c) {
    if (word->n_chars++ >= LLMI_WORD_CHARS) { return; }
    if (word->n_bytes == 0) {
        memcpy(word->text, llmi_blank, 3);
        word->n_bytes = 3;
    }
    word->n_bytes += llmi_utf8_put(c, word->text + word->n_bytes);
}

// Each punctuation character, ASCII symbol and CJK ideograph is a separate word.
static bool llmi_is_word(uint32_t c) {
    static const uint32_t ideographs[][2] = { { 0x4E00, 0x9FFF }, { 0x3400, 0x4DBF }, { 0x20000, 0x2A6DF },
        { 0x2A700, 0x2B73F }, { 0x2B740, 0x2B81F }, { 0x2B920, 0x2CEAF }, { 0xF900, 0xFAFF }, { 0x2F800, 0x2FA1F } };
    const enum llmi_uc k = llmi_uc_class(c);
    if (k == LLMI_UC_PUNCT || (c < 128 && k == LLMI_UC_SYMBOL)) { return true; }
    for (size_t i = 0; i < sizeof ideographs / sizeof *ideographs; ++i) {
        if (c >= ideographs[i][0] && c <= ideographs[i][1]) { return true; }
    }
    return false;
}

// Characters that are skipped: control characters except tab and line ends, and U+FFFD.
static bool llmi_is_dropped(uint32_t c, enum llmi_uc k) {
    const bool is_control = c < 0x20 || (c >= 0x7F && c < 0xA0);
    return k == LLMI_UC_CONTROL || c == 0xFFFD || (is_control && c != '\t' && c != '\n' && c != '\r');
}

static void llmi_wpm_char(struct llmi_tokenizer * t, struct llmi_word * word, uint32_t c) {
    const bool is_word = llmi_is_word(c);
    if (is_word && word->n_chars > 0) { llmi_end_word(t, word); }
    llmi_add_to_word(word, c);
    if (is_word) { llmi_end_word(t, word); }
}

static gcuda_status llmi_wpm(struct llmi_tokenizer * t, const char * text, size_t n) {
    struct llmi_word word = { { 0 }, 0, 0 };
    uint32_t parts[LLMI_UC_MAX_PARTS];
    size_t length;
    for (size_t i = 0; i < n; i += length) {
        const uint32_t c = llmi_utf8_next(text + i, n - i, &length);
        const enum llmi_uc k = llmi_uc_class(c);
        if (llmi_is_dropped(c, k)) { continue; }
        if (k == LLMI_UC_SPACE && word.n_chars > 0) { llmi_end_word(t, &word); }
        if (k == LLMI_UC_SPACE) { continue; }
        parts[0] = c;
        const int n_parts = t->v->lowercase ? llmi_uc_strip(c, parts) : 1; // accents go with the capitals
        for (int k_part = 0; k_part < n_parts; ++k_part) {
            llmi_wpm_char(t, &word, t->v->lowercase ? llmi_uc_lower(parts[k_part]) : parts[k_part]);
        }
    }
    if (word.n_chars > 0) { llmi_end_word(t, &word); }
    return GCUDA_STATUS_SUCCESS;
}

// ---- tokens to text ----

static bool llmi_is_shown(const struct llmi_vocab * v, int32_t token) {
    return v->type[token] == LLMI_NORMAL || v->type[token] == LLMI_USER_DEFINED || v->type[token] == LLMI_BYTE;
}

static void llmi_detokenize(
    const struct llmi_vocab * v, const int32_t * tokens, size_t n, bool with_special, struct llmi_out * out) {
    bool is_first = v->kind != LLMI_BPE && v->add_space; // the blank that tokenization added
    for (size_t i = 0; i < n; ++i) {
        if (!with_special && !llmi_is_shown(v, tokens[i])) { continue; }
        const char * piece = v->piece + v->piece_at[tokens[i]];
        const size_t size = v->piece_at[tokens[i] + 1] - v->piece_at[tokens[i]];
        const bool is_blank = is_first && size > 0 && piece[0] == ' ';
        is_first = is_first && !llmi_is_shown(v, tokens[i]);
        llmi_put(out, piece + is_blank, size - is_blank);
    }
}

// =====================================================================================================
// >>chat   chat templates
// =====================================================================================================

enum llmi_chat_trait {
    LLMI_TRIM_SYSTEM = 1,
    LLMI_TRIM_USER = 2,
    LLMI_TRIM_ASSISTANT = 4,
    LLMI_SYSTEM_IN_USER = 8,  // the system text is put before the user's next message
    LLMI_DEFAULT_SYSTEM = 16, // the template has a default system text
    // a head before everything; the assistant's message that ends a chat has a special end
    LLMI_HARMONY = 32
};
enum { LLMI_SYSTEM, LLMI_USER, LLMI_ASSISTANT, LLMI_ROLES };
#define LLMI_TRIM_ALL (LLMI_TRIM_SYSTEM | LLMI_TRIM_USER | LLMI_TRIM_ASSISTANT)

static const struct llmi_template {
    const char * name;
    const char * marks[2]; // a file's template is this one if it contains both; NULL: any. The first row that fits
    const char * around[LLMI_ROLES][2];
    const char * open; // begins the assistant's message
    int traits;
} llmi_templates[] = {
    { "phi4", { "<|im_start|>", "<|im_sep|>" },
        { { "<|im_start|>system<|im_sep|>", "<|im_end|>" }, { "<|im_start|>user<|im_sep|>", "<|im_end|>" },
            { "<|im_start|>assistant<|im_sep|>", "<|im_end|>" } },
        "<|im_start|>assistant<|im_sep|>", 0 },
    { "chatml", { "<|im_start|>", NULL },
        { { "<|im_start|>system\n", "<|im_end|>\n" }, { "<|im_start|>user\n", "<|im_end|>\n" },
            { "<|im_start|>assistant\n", "<|im_end|>\n" } },
        "<|im_start|>assistant\n", LLMI_DEFAULT_SYSTEM },
    // Templates of Mistral differ in blanks. The default system text of newer ones is not added.
    { "mistral-v7", { "[SYSTEM_PROMPT] ", "[INST]" },
        { { "[SYSTEM_PROMPT] ", "[/SYSTEM_PROMPT]" }, { "[INST] ", "[/INST]" }, { " ", "</s>" } }, "", 0 },
    { "mistral-v7-tekken", { "[SYSTEM_PROMPT]", "[INST]" },
        { { "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]" }, { "[INST]", "[/INST]" }, { "", "</s>" } }, "", 0 },
    { "mistral-v1", { " [INST] ", " [/INST]" }, { { "", "" }, { " [INST] ", " [/INST]" }, { " ", "</s>" } }, "",
        LLMI_SYSTEM_IN_USER },
    { "mistral-7b-v0.2", { "[INST] ", " [/INST]" }, // and v0.1: without the blanks before [INST] and the answer
        { { "", "" }, { "[INST] ", " [/INST]" }, { "", "</s>" } }, "", LLMI_SYSTEM_IN_USER },
    { "mistral-v3", { "[INST] ", "[/INST]" }, { { "", "" }, { "[INST] ", "[/INST]" }, { " ", "</s>" } }, "",
        LLMI_SYSTEM_IN_USER | LLMI_TRIM_ASSISTANT },
    { "mistral-v3-tekken", { "[INST]", "[/INST]" }, { { "", "" }, { "[INST]", "[/INST]" }, { "", "</s>" } }, "",
        LLMI_SYSTEM_IN_USER },
    { "phi3", { "<|assistant|>", "<|end|>" },
        { { "<|system|>\n", "<|end|>\n" }, { "<|user|>\n", "<|end|>\n" }, { "<|assistant|>\n", "<|end|>\n" } },
        "<|assistant|>\n", 0 },
    { "gemma", { "<start_of_turn>", NULL },
        { { "", "" }, { "<start_of_turn>user\n", "<end_of_turn>\n" }, { "<start_of_turn>model\n", "<end_of_turn>\n" } },
        "<start_of_turn>model\n", LLMI_SYSTEM_IN_USER | LLMI_TRIM_ALL },
    { "llama3", { "<|start_header_id|>", "<|end_header_id|>" },
        { { "<|start_header_id|>system<|end_header_id|>\n\n", "<|eot_id|>" },
            { "<|start_header_id|>user<|end_header_id|>\n\n", "<|eot_id|>" },
            { "<|start_header_id|>assistant<|end_header_id|>\n\n", "<|eot_id|>" } },
        "<|start_header_id|>assistant<|end_header_id|>\n\n", LLMI_TRIM_ALL },
    { "gpt-oss", { "<|start|>", "<|channel|>" },
        { { "<|start|>developer<|message|># Instructions\n\n", "\n\n<|end|>" },
            { "<|start|>user<|message|>", "<|end|>" }, { "<|start|>assistant<|channel|>final<|message|>", "<|end|>" } },
        "<|start|>assistant", LLMI_HARMONY },
};

// Template that tokenizer.chat_template matches; NULL: unknown.
static const struct llmi_template * llmi_template_of(const char * text) {
    // Llama 2 has [INST] too, in another format
    if (text == NULL || strstr(text, "<<SYS>>") != NULL) { return NULL; }
    for (size_t i = 0; i < sizeof llmi_templates / sizeof *llmi_templates; ++i) {
        const struct llmi_template * row = &llmi_templates[i];
        const bool is_both =
            strstr(text, row->marks[0]) != NULL && (row->marks[1] == NULL || strstr(text, row->marks[1]) != NULL);
        if (is_both || strcmp(text, row->name) == 0) { return row; }
    }
    return NULL;
}

// The i-th text of a template; NULL: there are no more.
static const char * llmi_template_part(const struct llmi_template * t, int i) {
    if (i < 2 * LLMI_ROLES) { return t->around[i / 2][i % 2]; }
    return i == 2 * LLMI_ROLES ? t->open : NULL;
}

// Default system text of a chatml template: the text between its markers, if it is plain text.
static const char * llmi_default_system(const char * text, size_t * n) {
    const char * begin = strstr(text, "<|im_start|>system");
    if (begin == NULL) { return NULL; }
    begin += 18;
    // a line end, or its escape in the template
    begin += begin[0] == '\n' ? 1 : strncmp(begin, "\\n", 2) == 0 ? 2 : 0;
    const char * end = strstr(begin, "<|im_end|>");
    *n = end ? (size_t) (end - begin) : 0;
    return *n > 0 && strcspn(begin, "'\"{}\\") >= *n ? begin : NULL;
}

struct llmi_chat { // one call
    const struct llmi_template * t;
    struct llmi_out text;
    struct llmi_range * plain; // offsets of the messages in `text`; NULL: not wanted
    size_t n_plain;
};

static void llmi_chat_template(struct llmi_chat * c, const char * text) { llmi_put(&c->text, text, strlen(text)); }

static void llmi_chat_content(struct llmi_chat * c, const char * text, size_t n, bool trim) {
    while (trim && n > 0 && text[0] != '\0' && strchr(" \t\n\v\f\r", text[0]) != NULL) { ++text, --n; }
    while (trim && n > 0 && text[n - 1] != '\0' && strchr(" \t\n\v\f\r", text[n - 1]) != NULL) { --n; }
    const struct llmi_range range = { c->text.n, c->text.n + n };
    if (c->plain != NULL) { c->plain[c->n_plain++] = range; }
    llmi_put(&c->text, text, n);
}

// The day of a time in seconds since 1970, as 2026-11-28. gmtime has one result for all threads.
enum { LLMI_DATE = 40 };
static void llmi_date(int64_t seconds, char date[LLMI_DATE]) {
    static const int days_before[13] = { 0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334, 365 };
    int64_t day = seconds > 0 ? seconds / 86400 : 0, year = 1970;
    bool is_leap = false;
    int month = 1;
    for (;; ++year) {
        is_leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
        if (day < 365 + is_leap || year == 9999) { break; }
        day -= 365 + is_leap;
    }
    while (month < 12 && day >= days_before[month] + (is_leap && month >= 2)) { ++month; }
    day -= days_before[month - 1] + (is_leap && month > 2);
    snprintf(date, LLMI_DATE, "%04d-%02d-%02d", (int) year, month, (int) day + 1);
}

static void llmi_chat_head(struct llmi_chat * c) {
    char date[LLMI_DATE];
    llmi_date((int64_t) time(NULL), date);
    llmi_chat_template(c, "<|start|>system<|message|>You are ChatGPT, a large language model trained by OpenAI.\n"
                          "Knowledge cutoff: 2024-06\nCurrent date: ");
    llmi_chat_template(c, date);
    llmi_chat_template(c, "\n\nReasoning: medium\n\n# Valid channels: analysis, commentary, final. "
                          "Channel must be included for every message.<|end|>");
}

static int llmi_role(const char * name) {
    static const char * const names[LLMI_ROLES] = { "system", "user", "assistant" };
    int role = 0;
    while (role < LLMI_ROLES && (name == NULL || strcmp(name, names[role]) != 0)) { ++role; }
    return role;
}

static void llmi_chat_message(struct llmi_chat * c, int role, const char * text, const char * system, bool is_end) {
    llmi_chat_template(c, c->t->around[role][0]);
    if (system != NULL) {
        llmi_chat_content(c, system, strlen(system), (c->t->traits & LLMI_TRIM_SYSTEM) != 0);
        llmi_chat_template(c, "\n\n");
    }
    llmi_chat_content(c, text, strlen(text), (c->t->traits & (LLMI_TRIM_SYSTEM << role)) != 0);
    llmi_chat_template(c,
        is_end && role == LLMI_ASSISTANT && (c->t->traits & LLMI_HARMONY) != 0 ? "<|return|>" : c->t->around[role][1]);
}

static gcuda_status llmi_chat_run(
    struct llmi_chat * c, const struct llm_message * messages, size_t n, bool is_open, const char * file_text) {
    const char * system = NULL; // pending until the user's next message
    size_t n_default = 0;
    if ((c->t->traits & LLMI_HARMONY) != 0) { llmi_chat_head(c); }
    const bool has_system = n > 0 && llmi_role(messages[0].role) == LLMI_SYSTEM;
    const char * preset =
        (c->t->traits & LLMI_DEFAULT_SYSTEM) != 0 && !has_system ? llmi_default_system(file_text, &n_default) : NULL;
    if (preset != NULL) {
        llmi_chat_template(c, c->t->around[LLMI_SYSTEM][0]);
        llmi_chat_content(c, preset, n_default, false);
        llmi_chat_template(c, c->t->around[LLMI_SYSTEM][1]);
    }
    for (size_t i = 0; i < n; ++i) {
        const int role = llmi_role(messages[i].role);
        if (role == LLMI_ROLES || messages[i].content == NULL) {
            return llmi_fail(GCUDA_STATUS_INVALID_ARGUMENT,
                "message %zu: the role is '%s', which is none of system, user, assistant, or there is no text", i,
                messages[i].role ? messages[i].role : "NULL");
        }
        if (role == LLMI_SYSTEM && (c->t->traits & LLMI_SYSTEM_IN_USER) != 0) {
            system = messages[i].content;
            continue;
        }
        llmi_chat_message(c, role, messages[i].content, role == LLMI_USER ? system : NULL, i + 1 == n && !is_open);
        if (role == LLMI_USER) { system = NULL; }
    }
    if (is_open) { llmi_chat_template(c, c->t->open); }
    return GCUDA_STATUS_SUCCESS;
}

// =====================================================================================================
// >>arch   architectures: parameters, tensors, as tables
// =====================================================================================================

// A model is described by its traits, which select tensors of the two tables below. Two more traits depend on the file.
enum llmi_trait {
    LLMI_DECODER = 1,
    LLMI_ENCODER = 2,        // BERT
    LLMI_QK_NORM = 4,        // queries and keys are normalised, each head for itself
    LLMI_POST_NORM = 8,      // results of attention and feed-forward are normalised before they are added
    LLMI_FFN_NORM = 16,      // the norm before feed-forward is called ffn_norm
    LLMI_SINKS = 32,         // each head has a learned logit in the softmax
    LLMI_WINDOW = 64,        // some layers see a window only
    LLMI_DENSE = 128,        // feed-forward without experts, with a gate ...
    LLMI_FUSED_UP = 256,     // ... gate and up are one tensor
    LLMI_EXPERT_BIAS = 512,  // experts and their router have biases
    LLMI_TOP_K_FIRST = 1024, // routing: softmax over the chosen experts alone
    LLMI_SCALE_EMBD = 2048,  // embeddings are multiplied by sqrt(n_embd)
    LLMI_LONG_ROPE = 4096,   // factors for short and for long contexts
    LLMI_OWN_OUTPUT = 8192,  // the output matrix is not that of the embeddings
    LLMI_SHARED_FF = 16384,  // feed_forward_length counts the experts of a token together
    LLMI_MOE = 1 << 16,      // set by the file: it has experts
    LLMI_SPLIT_QKV = 1 << 17 // set by the file: separate matrices of queries, keys, values
};
#define LLMI_ALL (LLMI_DECODER | LLMI_ENCODER)
#define LLMI_USUAL (LLMI_DECODER | LLMI_FFN_NORM | LLMI_DENSE)

static const struct llmi_arch {
    const char * name; // general.architecture
    int traits;
    enum gcuda_rope_type rope;
    enum gcuda_glu_op gate;
    int pattern; // layers per period, the last of which has no window; the file may set it
} llmi_archs[] = {
    { "llama", LLMI_USUAL, GCUDA_ROPE_TYPE_NORMAL, GCUDA_GLU_OP_SWIGLU, 0 },
    { "qwen2", LLMI_USUAL, GCUDA_ROPE_TYPE_NEOX, GCUDA_GLU_OP_SWIGLU, 0 },
    { "qwen3", LLMI_USUAL | LLMI_QK_NORM, GCUDA_ROPE_TYPE_NEOX, GCUDA_GLU_OP_SWIGLU, 0 },
    { "qwen3moe", LLMI_USUAL | LLMI_QK_NORM | LLMI_SHARED_FF, GCUDA_ROPE_TYPE_NEOX, GCUDA_GLU_OP_SWIGLU, 0 },
    { "gemma3", LLMI_USUAL | LLMI_QK_NORM | LLMI_POST_NORM | LLMI_WINDOW | LLMI_SCALE_EMBD, GCUDA_ROPE_TYPE_NEOX,
        GCUDA_GLU_OP_GEGLU, 6 },
    { "gpt-oss", LLMI_DECODER | LLMI_SINKS | LLMI_WINDOW | LLMI_EXPERT_BIAS | LLMI_TOP_K_FIRST | LLMI_OWN_OUTPUT,
        GCUDA_ROPE_TYPE_NEOX, GCUDA_GLU_OP_SWIGLU_OAI, 2 },
    { "phi3", LLMI_DECODER | LLMI_FFN_NORM | LLMI_FUSED_UP | LLMI_LONG_ROPE, GCUDA_ROPE_TYPE_NEOX, GCUDA_GLU_OP_SWIGLU,
        0 },
    { "bert", LLMI_ENCODER, GCUDA_ROPE_TYPE_NEOX, GCUDA_GLU_OP_GEGLU, 0 },
};

struct llmi_rope {
    float base, scale, extrapolate, magnitude, beta_fast, beta_slow;
};

// Parameters from the file's keys.
struct llmi_params {
    // n_kv: heads of keys and values; head: its size
    int64_t n_vocab, n_ctx, n_embd, n_layers, n_ff, n_heads, n_kv, head, n_rot;
    int64_t n_experts, n_used, n_ff_expert, n_types;
    int64_t window, n_ctx_orig, pooling; // window 0: none
    float eps, softcap, q_scale;         // softcap: of logits, 0: none
    struct llmi_rope rope[2];            // of layers without a window, with one
};

// ---- tensors ----

enum llmi_dim { // sizes of tensors
    LLMI_ONE,
    LLMI_EMBD,
    LLMI_VOCAB,
    LLMI_CTX,
    LLMI_TYPES,
    LLMI_HEAD,
    LLMI_HEADS,
    LLMI_Q,
    LLMI_KV,
    LLMI_QKV,
    LLMI_FF,
    LLMI_FF_2,
    LLMI_FF_EXPERT,
    LLMI_EXPERTS,
    LLMI_HALF_ROT
};

struct llmi_weights { // NULL: the model has none
    struct gcuda_tensor *embd, *output_norm, *output, *output_b, *rope_freqs, *rope_long, *rope_short;
    struct gcuda_tensor *position_embd, *type_embd, *embd_norm, *embd_norm_b;
};
struct llmi_layer {
    struct gcuda_tensor *attn_norm, *qkv, *qkv_b, *q, *q_b, *k, *k_b, *v, *v_b, *q_norm, *k_norm, *sinks, *out, *out_b,
        *attn_post_norm;
    struct gcuda_tensor *ffn_norm, *gate, *gate_b, *up, *up_b, *down, *down_b, *ffn_post_norm;
    struct gcuda_tensor *router, *router_b, *gates, *gates_b, *ups, *ups_b, *downs, *downs_b; // experts
    struct gcuda_tensor *attn_out_norm, *attn_out_norm_b, *out_norm, *out_norm_b;             // BERT
};

struct llmi_tensor_row {
    const char * name;
    size_t field; // offset of the pointer
    enum llmi_dim ne[3];
    int needs, may; // traits that require it; traits that allow it
};
#define LLMI_W(field) offsetof(struct llmi_weights, field)
#define LLMI_L(field) offsetof(struct llmi_layer, field)

// clang-format off
static const struct llmi_tensor_row llmi_weight_rows[] = {
    { "token_embd.weight",         LLMI_W(embd),          { LLMI_EMBD, LLMI_VOCAB, LLMI_ONE },          LLMI_ALL, 0 },
    { "output_norm.weight",        LLMI_W(output_norm),   { LLMI_EMBD, LLMI_ONE, LLMI_ONE },
        LLMI_DECODER, 0 },
    { "output.weight",             LLMI_W(output),        { LLMI_EMBD, LLMI_VOCAB, LLMI_ONE },          LLMI_OWN_OUTPUT,
        LLMI_DECODER },
    { "output.bias",               LLMI_W(output_b),      { LLMI_VOCAB, LLMI_ONE, LLMI_ONE },           0,
        LLMI_DECODER },
    { "rope_freqs.weight",         LLMI_W(rope_freqs),    { LLMI_HALF_ROT, LLMI_ONE, LLMI_ONE },        0,
        LLMI_DECODER },
    { "rope_factors_long.weight",  LLMI_W(rope_long),     { LLMI_HALF_ROT, LLMI_ONE, LLMI_ONE },        0,
        LLMI_DECODER },
    { "rope_factors_short.weight", LLMI_W(rope_short),    { LLMI_HALF_ROT, LLMI_ONE, LLMI_ONE },        0,
        LLMI_DECODER },
    { "position_embd.weight",      LLMI_W(position_embd), { LLMI_EMBD, LLMI_CTX, LLMI_ONE },
        LLMI_ENCODER, 0 },
    { "token_types.weight",        LLMI_W(type_embd),     { LLMI_EMBD, LLMI_TYPES, LLMI_ONE },          0,
        LLMI_ENCODER },
    { "token_embd_norm.weight",    LLMI_W(embd_norm),     { LLMI_EMBD, LLMI_ONE, LLMI_ONE },
        LLMI_ENCODER, 0 },
    { "token_embd_norm.bias",      LLMI_W(embd_norm_b),   { LLMI_EMBD, LLMI_ONE, LLMI_ONE },
        LLMI_ENCODER, 0 },
};
static const struct llmi_tensor_row llmi_layer_rows[] = { // names after "blk.N."
    { "attn_norm.weight",           LLMI_L(attn_norm),       { LLMI_EMBD, LLMI_ONE, LLMI_ONE },
        LLMI_DECODER, 0 },
    { "attn_qkv.weight",            LLMI_L(qkv),             { LLMI_EMBD, LLMI_QKV, LLMI_ONE },
        0, LLMI_ALL },
    { "attn_qkv.bias",              LLMI_L(qkv_b),           { LLMI_QKV, LLMI_ONE, LLMI_ONE },
        0, LLMI_ALL },
    { "attn_q.weight",              LLMI_L(q),               { LLMI_EMBD, LLMI_Q, LLMI_ONE },
        LLMI_SPLIT_QKV, 0 },
    { "attn_k.weight",              LLMI_L(k),               { LLMI_EMBD, LLMI_KV, LLMI_ONE },
        LLMI_SPLIT_QKV, 0 },
    { "attn_v.weight",              LLMI_L(v),               { LLMI_EMBD, LLMI_KV, LLMI_ONE },
        LLMI_SPLIT_QKV, 0 },
    { "attn_q.bias",                LLMI_L(q_b),             { LLMI_Q, LLMI_ONE, LLMI_ONE },                   0,
        LLMI_SPLIT_QKV },
    { "attn_k.bias",                LLMI_L(k_b),             { LLMI_KV, LLMI_ONE, LLMI_ONE },                  0,
        LLMI_SPLIT_QKV },
    { "attn_v.bias",                LLMI_L(v_b),             { LLMI_KV, LLMI_ONE, LLMI_ONE },                  0,
        LLMI_SPLIT_QKV },
    { "attn_q_norm.weight",         LLMI_L(q_norm),          { LLMI_HEAD, LLMI_ONE, LLMI_ONE },
        LLMI_QK_NORM, 0 },
    { "attn_k_norm.weight",         LLMI_L(k_norm),          { LLMI_HEAD, LLMI_ONE, LLMI_ONE },
        LLMI_QK_NORM, 0 },
    { "attn_sinks.weight",          LLMI_L(sinks),           { LLMI_HEADS, LLMI_ONE, LLMI_ONE },
        LLMI_SINKS, 0 },
    { "attn_output.weight",         LLMI_L(out),             { LLMI_Q, LLMI_EMBD, LLMI_ONE },
        LLMI_ALL, 0 },
    { "attn_output.bias",           LLMI_L(out_b),           { LLMI_EMBD, LLMI_ONE, LLMI_ONE },
        LLMI_EXPERT_BIAS | LLMI_ENCODER, LLMI_ALL },
    { "post_attention_norm.weight", LLMI_L(attn_post_norm),  { LLMI_EMBD, LLMI_ONE, LLMI_ONE },
        LLMI_POST_NORM, 0 },
    // gpt-oss
    { "post_attention_norm.weight", LLMI_L(ffn_norm),        { LLMI_EMBD, LLMI_ONE, LLMI_ONE },
        LLMI_EXPERT_BIAS, 0 },
    { "ffn_norm.weight",            LLMI_L(ffn_norm),        { LLMI_EMBD, LLMI_ONE, LLMI_ONE },
        LLMI_FFN_NORM, 0 },
    { "post_ffw_norm.weight",       LLMI_L(ffn_post_norm),   { LLMI_EMBD, LLMI_ONE, LLMI_ONE },
        LLMI_POST_NORM, 0 },
    { "ffn_gate.weight",            LLMI_L(gate),            { LLMI_EMBD, LLMI_FF, LLMI_ONE },
        LLMI_DENSE, 0 },
    { "ffn_up.weight",              LLMI_L(up),              { LLMI_EMBD, LLMI_FF, LLMI_ONE },
        LLMI_DENSE | LLMI_ENCODER, 0 },
    { "ffn_up.weight",              LLMI_L(up),              { LLMI_EMBD, LLMI_FF_2, LLMI_ONE },
        LLMI_FUSED_UP, 0 },
    { "ffn_down.weight",            LLMI_L(down),            { LLMI_FF, LLMI_EMBD, LLMI_ONE },
        LLMI_DENSE | LLMI_FUSED_UP | LLMI_ENCODER, 0 },
    { "ffn_gate.bias",              LLMI_L(gate_b),          { LLMI_FF, LLMI_ONE, LLMI_ONE },                  0,
        LLMI_DENSE },
    { "ffn_up.bias",                LLMI_L(up_b),            { LLMI_FF, LLMI_ONE, LLMI_ONE },
        LLMI_ENCODER, LLMI_DENSE },
    { "ffn_down.bias",              LLMI_L(down_b),          { LLMI_EMBD, LLMI_ONE, LLMI_ONE },
        LLMI_ENCODER, LLMI_DENSE },
    { "ffn_gate_inp.weight",        LLMI_L(router),          { LLMI_EMBD, LLMI_EXPERTS, LLMI_ONE },
        LLMI_MOE, 0 },
    { "ffn_gate_inp.bias",          LLMI_L(router_b),        { LLMI_EXPERTS, LLMI_ONE, LLMI_ONE },
        LLMI_EXPERT_BIAS, 0 },
    { "ffn_gate_exps.weight",       LLMI_L(gates),           { LLMI_EMBD, LLMI_FF_EXPERT, LLMI_EXPERTS },
        LLMI_MOE, 0 },
    { "ffn_up_exps.weight",         LLMI_L(ups),             { LLMI_EMBD, LLMI_FF_EXPERT, LLMI_EXPERTS },
        LLMI_MOE, 0 },
    { "ffn_down_exps.weight",       LLMI_L(downs),           { LLMI_FF_EXPERT, LLMI_EMBD, LLMI_EXPERTS },
        LLMI_MOE, 0 },
    { "ffn_gate_exps.bias",         LLMI_L(gates_b),         { LLMI_FF_EXPERT, LLMI_EXPERTS, LLMI_ONE },
        LLMI_EXPERT_BIAS, 0 },
    { "ffn_up_exps.bias",           LLMI_L(ups_b),           { LLMI_FF_EXPERT, LLMI_EXPERTS, LLMI_ONE },
        LLMI_EXPERT_BIAS, 0 },
    { "ffn_down_exps.bias",         LLMI_L(downs_b),         { LLMI_EMBD, LLMI_EXPERTS, LLMI_ONE },
        LLMI_EXPERT_BIAS, 0 },
    { "attn_output_norm.weight",    LLMI_L(attn_out_norm),   { LLMI_EMBD, LLMI_ONE, LLMI_ONE },
        LLMI_ENCODER, 0 },
    { "attn_output_norm.bias",      LLMI_L(attn_out_norm_b), { LLMI_EMBD, LLMI_ONE, LLMI_ONE },
        LLMI_ENCODER, 0 },
    { "layer_output_norm.weight",   LLMI_L(out_norm),        { LLMI_EMBD, LLMI_ONE, LLMI_ONE },
        LLMI_ENCODER, 0 },
    { "layer_output_norm.bias",     LLMI_L(out_norm_b),      { LLMI_EMBD, LLMI_ONE, LLMI_ONE },
        LLMI_ENCODER, 0 },
};
// clang-format on

static int64_t llmi_size(const struct llmi_params * p, enum llmi_dim dim) {
    switch (dim) {
        case LLMI_EMBD: return p->n_embd;
        case LLMI_VOCAB: return p->n_vocab;
        case LLMI_CTX: return p->n_ctx;
        case LLMI_TYPES: return p->n_types;
        case LLMI_HEAD: return p->head;
        case LLMI_HEADS: return p->n_heads;
        case LLMI_Q: return p->head * p->n_heads;
        case LLMI_KV: return p->head * p->n_kv;
        case LLMI_QKV: return p->head * (p->n_heads + 2 * p->n_kv);
        case LLMI_FF: return p->n_ff;
        case LLMI_FF_2: return 2 * p->n_ff;
        case LLMI_FF_EXPERT: return p->n_ff_expert;
        case LLMI_EXPERTS: return p->n_experts;
        case LLMI_HALF_ROT: return p->n_rot / 2;
        default: return 1;
    }
}

// =====================================================================================================
// >>model   loading
// =====================================================================================================

enum { LLMI_MAX_BACKENDS = 17 };

struct llm_model {
    struct gcuda_context * arena;   // of this struct and the tables
    struct gcuda_context * tensors; // descriptions of the weights
    gcuda_backend_buffer_t buffer;
    gcuda_backend_t backends[LLMI_MAX_BACKENDS]; // if there are several, the last is the CPU
    int n_backends;
    char backend_names[8 * LLMI_MAX_BACKENDS];
    struct llmi_file file;
    const struct llmi_arch * arch;
    int traits;
    struct llmi_params params;
    struct llmi_weights w;
    struct llmi_layer * layers;
    bool * has_window; // of each layer
    struct llmi_vocab vocab;
    const char *name, *template_text;
    const struct llmi_template * chat;
    int64_t n_params;
    size_t n_bytes;
    struct llm_load_times load;
};

// ---- keys. Names after the architecture's, as in "llama.block_count" ----

struct llmi_key {
    char text[128];
};
static struct llmi_key llmi_key_of(const struct llmi_file * f, const char * name) {
    struct llmi_key key;
    snprintf(key.text, sizeof key.text, "%s.%s", f->arch, name);
    return key;
}
static gcuda_status llmi_int(
    const struct llmi_file * f, const char * name, bool is_required, int64_t min, int64_t max, int64_t * value) {
    const struct llmi_key key = llmi_key_of(f, name);
    return gcuda_gguf_get_int(f->g, key.text, is_required, min, max, value);
}
static gcuda_status llmi_float(const struct llmi_file * f, const char * name, bool is_required, float * value) {
    const struct llmi_key key = llmi_key_of(f, name);
    return gcuda_gguf_get_float(f->g, key.text, is_required, value);
}

// A number that files may give per layer; only equal numbers are supported.
static gcuda_status llmi_int_of_layers(
    const struct llmi_file * f, const char * name, bool is_required, int64_t n_layers, int64_t max, int64_t * value) {
    const struct llmi_key key = llmi_key_of(f, name);
    const int64_t id = gcuda_gguf_find_key(f->g, key.text);
    if (id < 0 || gcuda_gguf_get_kv_type(f->g, id) != GCUDA_GGUF_TYPE_ARRAY) {
        return gcuda_gguf_get_int(f->g, key.text, is_required, 1, max, value);
    }
    if (gcuda_gguf_get_arr_n(f->g, id) != (uint64_t) n_layers) {
        return llmi_fail(GCUDA_STATUS_INVALID_DATA, "the key '%s' has %llu elements for %lld layers", key.text,
            (unsigned long long) gcuda_gguf_get_arr_n(f->g, id), (long long) n_layers);
    }
    for (int64_t i = 0, first = 0; i < n_layers; ++i) {
        LLMI_TRY(gcuda_gguf_get_int_at(f->g, key.text, true, (uint64_t) i, 1, max, value));
        if (i == 0) { first = *value; }
        if (*value != first) {
            return llmi_fail(GCUDA_STATUS_UNSUPPORTED, "the key '%s' differs between layers: %lld and %lld", key.text,
                (long long) first, (long long) *value);
        }
    }
    return GCUDA_STATUS_SUCCESS;
}

static gcuda_status llmi_load_sizes(const struct llmi_file * f, int traits, struct llmi_params * p) {
    const int64_t big = 1 << 24;
    LLMI_TRY(llmi_int(f, "context_length", true, 1, INT32_MAX / 4, &p->n_ctx));
    LLMI_TRY(llmi_int(f, "embedding_length", true, 1, big, &p->n_embd));
    LLMI_TRY(llmi_int(f, "block_count", true, 1, LLM_MAX_LAYERS, &p->n_layers));
    LLMI_TRY(llmi_int(f, "expert_count", false, 0, 1024, &p->n_experts));
    LLMI_TRY(llmi_int(f, "expert_used_count", p->n_experts > 0, 0, p->n_experts, &p->n_used));
    LLMI_TRY(llmi_int_of_layers(f, "feed_forward_length", p->n_experts == 0, p->n_layers, big, &p->n_ff));
    LLMI_TRY(llmi_int_of_layers(f, "attention.head_count", true, p->n_layers, 65536, &p->n_heads));
    p->n_kv = p->n_heads;
    LLMI_TRY(llmi_int_of_layers(f, "attention.head_count_kv", false, p->n_layers, 65536, &p->n_kv));
    if (p->n_heads % p->n_kv != 0) {
        return llmi_fail(GCUDA_STATUS_INVALID_DATA, "%lld heads of queries cannot share %lld of keys evenly",
            (long long) p->n_heads, (long long) p->n_kv);
    }
    const struct llmi_key length_key = llmi_key_of(f, "attention.key_length");
    const bool has_length = gcuda_gguf_find_key(f->g, length_key.text) >= 0;
    p->head = p->n_embd / p->n_heads;
    LLMI_TRY(llmi_int(f, "attention.key_length", false, 1, 65536, &p->head));
    int64_t head_v = p->head;
    LLMI_TRY(llmi_int(f, "attention.value_length", false, 1, 65536, &head_v));
    if (head_v != p->head) {
        return llmi_fail(
            GCUDA_STATUS_UNSUPPORTED, "keys of %lld elements, values of %lld", (long long) p->head, (long long) head_v);
    }
    if (!has_length && p->n_embd % p->n_heads != 0) {
        return llmi_fail(GCUDA_STATUS_INVALID_DATA, "%lld elements do not divide among %lld heads",
            (long long) p->n_embd, (long long) p->n_heads);
    }
    p->n_ff_expert = p->n_used > 0 && (traits & LLMI_SHARED_FF) != 0 ? llmi_max(1, p->n_ff / p->n_used) : p->n_ff;
    LLMI_TRY(llmi_int_of_layers(f, "expert_feed_forward_length", false, p->n_layers, big, &p->n_ff_expert));
    if (p->n_experts > 0 && p->n_used < 1) {
        return llmi_fail(GCUDA_STATUS_INVALID_DATA, "%lld experts, of which none is used", (long long) p->n_experts);
    }
    p->n_rot = p->head;
    LLMI_TRY(llmi_int(f, "rope.dimension_count", false, 2, p->head, &p->n_rot));
    return p->n_rot % 2 == 0 ? GCUDA_STATUS_SUCCESS
                             : llmi_fail(GCUDA_STATUS_INVALID_DATA, "an odd number of elements is rotated: %lld",
                                   (long long) p->n_rot);
}

// YaRN multiplies the magnitude by 1 + 0.1 ln(factor). gcuda_rope_ext does that itself, so it gets the remaining
// factor.
static gcuda_status llmi_load_rope(const struct llmi_file * f, struct llmi_params * p) {
    struct llmi_rope * r = &p->rope[0];
    const char * type = "linear";
    float factor = 0.0f, attn_factor = 1.0f, magnitude = 0.0f;
    const struct llmi_key type_key = llmi_key_of(f, "rope.scaling.type");
    r->base = 10000.0f;
    LLMI_TRY(llmi_float(f, "rope.freq_base", false, &r->base));
    LLMI_TRY(gcuda_gguf_get_str(f->g, type_key.text, false, &type));
    LLMI_TRY(llmi_float(f, "rope.scale_linear", false, &factor));
    LLMI_TRY(llmi_float(f, "rope.scaling.factor", false, &factor));
    LLMI_TRY(llmi_float(f, "rope.scaling.attn_factor", false, &attn_factor));
    LLMI_TRY(llmi_float(f, "rope.scaling.yarn_attn_factor", false, &magnitude));
    const bool is_yarn = strcmp(type, "yarn") == 0;
    if (!is_yarn && strcmp(type, "linear") != 0 && strcmp(type, "none") != 0 && strcmp(type, "longrope") != 0) {
        return llmi_fail(GCUDA_STATUS_UNSUPPORTED,
            "the key '%s' is '%.64s'; supported are none, linear, yarn and longrope", type_key.text, type);
    }
    if (factor < 0.0f || r->base <= 0.0f) {
        return llmi_fail(
            GCUDA_STATUS_INVALID_DATA, "rope: base %g, scaling factor %g", (double) r->base, (double) factor);
    }
    r->scale = factor > 0.0f && strcmp(type, "none") != 0 ? 1.0f / factor : 1.0f;
    r->extrapolate = is_yarn ? 1.0f : 0.0f;
    r->beta_fast = 32.0f;
    r->beta_slow = 1.0f;
    LLMI_TRY(llmi_float(f, "rope.scaling.yarn_ext_factor", false, &r->extrapolate));
    LLMI_TRY(llmi_float(f, "rope.scaling.yarn_beta_fast", false, &r->beta_fast));
    LLMI_TRY(llmi_float(f, "rope.scaling.yarn_beta_slow", false, &r->beta_slow));
    const float of_op = r->extrapolate != 0.0f ? 1.0f + 0.1f * logf(1.0f / r->scale) : 1.0f;
    r->magnitude = attn_factor *
                   (magnitude > 0.0f                               ? magnitude
                       : r->extrapolate != 0.0f && r->scale < 1.0f ? of_op
                                                                   : 1.0f) /
                   of_op;
    if (!(r->scale <= FLT_MAX && fabsf(r->magnitude) <= FLT_MAX)) { // or NaN
        return llmi_fail(GCUDA_STATUS_INVALID_DATA, "rope: scaling factor %g, attn_factor %g, yarn_attn_factor %g",
            (double) factor, (double) attn_factor, (double) magnitude);
    }
    p->n_ctx_orig = p->n_ctx;
    return llmi_int(f, "rope.scaling.original_context_length", false, 1, INT32_MAX, &p->n_ctx_orig);
}

static gcuda_status llmi_load_window(struct llm_model * m) {
    struct llmi_params * p = &m->params;
    const struct llmi_key key = llmi_key_of(&m->file, "attention.sliding_window_pattern");
    const int64_t id = gcuda_gguf_find_key(m->file.g, key.text);
    int64_t pattern = m->arch->pattern, is_window = 0;
    p->rope[1] = p->rope[0];
    if ((m->traits & LLMI_WINDOW) == 0) { return GCUDA_STATUS_SUCCESS; }
    LLMI_TRY(llmi_int(&m->file, "attention.sliding_window", m->traits & LLMI_SINKS, 0, INT32_MAX, &p->window));
    const bool is_array = id >= 0 && gcuda_gguf_get_kv_type(m->file.g, id) == GCUDA_GGUF_TYPE_ARRAY;
    if (!is_array) { LLMI_TRY(gcuda_gguf_get_int(m->file.g, key.text, false, 0, LLM_MAX_LAYERS, &pattern)); }
    for (int64_t i = 0; i < p->n_layers; ++i) {
        if (is_array) {
            LLMI_TRY(gcuda_gguf_get_int_at(m->file.g, key.text, true, (uint64_t) i, 0, 1, &is_window));
        } else {
            is_window = pattern > 0 && i % pattern < pattern - 1;
        }
        m->has_window[i] = p->window > 0 && is_window;
    }
    if ((m->traits & LLMI_QK_NORM) != 0) { // gemma3: its layers with a window are not scaled
        p->rope[1].base = 10000.0f;
        p->rope[1].scale = 1.0f;
    }
    return llmi_float(&m->file, "rope.freq_base_swa", false, &p->rope[1].base);
}

static gcuda_status llmi_load_params(struct llm_model * m) {
    struct llmi_params * p = &m->params;
    const bool is_encoder = (m->traits & LLMI_ENCODER) != 0;
    LLMI_TRY(llmi_load_sizes(&m->file, m->traits, p));
    p->n_vocab = m->vocab.n_tokens;
    LLMI_TRY(llmi_float(
        &m->file, is_encoder ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon", true, &p->eps));
    if (p->eps < 0.0f) { return llmi_fail(GCUDA_STATUS_INVALID_DATA, "the epsilon of norms is %g", (double) p->eps); }
    LLMI_TRY(llmi_float(&m->file, "final_logit_softcapping", false, &p->softcap));
    LLMI_TRY(llmi_int(&m->file, "pooling_type", false, 0, 4, &p->pooling));
    LLMI_TRY(gcuda_gguf_get_int(m->file.g, "tokenizer.ggml.token_type_count", is_encoder, 1, 1 << 16, &p->n_types));
    LLMI_TRY(llmi_load_rope(&m->file, p));
    LLMI_TRY(llmi_made(m->has_window = LLMI_NEW(m->arena, bool, p->n_layers)));
    LLMI_TRY(llmi_load_window(m));
    const bool is_gemma_27b = (m->traits & LLMI_POST_NORM) != 0 && p->n_layers == 62;
    p->q_scale = 1.0f / sqrtf((float) (is_gemma_27b ? p->n_embd / p->n_heads : p->head));
    if (m->arch->rope == GCUDA_ROPE_TYPE_NORMAL && p->n_rot != p->head) {
        return llmi_fail(GCUDA_STATUS_UNSUPPORTED, "%s rotates %lld elements of heads of %lld", m->arch->name,
            (long long) p->n_rot, (long long) p->head);
    }
    if (p->n_experts > 0) { m->traits = (m->traits & ~LLMI_DENSE) | LLMI_MOE; }
    if (p->n_experts == 0 && (m->traits & LLMI_EXPERT_BIAS) != 0) {
        return llmi_fail(GCUDA_STATUS_INVALID_DATA, "the key 'expert_count' is missing or 0");
    }
    if (gcuda_gguf_find_tensor(m->file.g, "blk.0.attn_qkv.weight") < 0) { m->traits |= LLMI_SPLIT_QKV; }
    return GCUDA_STATUS_SUCCESS;
}

// ---- tensors ----

static gcuda_status llmi_make_tensor(
    struct llm_model * m, const struct llmi_tensor_row * row, const char * name, struct gcuda_tensor ** field) {
    const int64_t id = gcuda_gguf_find_tensor(m->file.g, name);
    if (id < 0) {
        if ((row->needs & m->traits) == 0) { return GCUDA_STATUS_SUCCESS; }
        return llmi_fail(GCUDA_STATUS_INVALID_DATA, "the tensor '%s' is missing", name);
    }
    int64_t want[4] = { 1, 1, 1, 1 };
    for (int i = 0; i < 3; ++i) { want[i] = llmi_size(&m->params, row->ne[i]); }
    const int64_t * ne = gcuda_gguf_get_tensor_ne(m->file.g, id);
    if (memcmp(ne, want, sizeof want) != 0) {
        return llmi_fail(GCUDA_STATUS_INVALID_DATA,
            "the tensor '%s' is [%lld, %lld, %lld, %lld], by the file's keys it should be [%lld, %lld, %lld, 1]", name,
            (long long) ne[0], (long long) ne[1], (long long) ne[2], (long long) ne[3], (long long) want[0],
            (long long) want[1], (long long) want[2]);
    }
    struct gcuda_tensor * t = gcuda_new_tensor(m->tensors, gcuda_gguf_get_tensor_type(m->file.g, id), 4, ne);
    LLMI_TRY(t ? GCUDA_STATUS_SUCCESS : gcuda_context_status(m->tensors));
    (void) gcuda_set_name(t, name);
    m->n_params += gcuda_nelements(t);
    m->n_bytes += gcuda_nbytes(t);
    *field = t;
    return GCUDA_STATUS_SUCCESS;
}

static gcuda_status llmi_make_tensors(
    struct llm_model * m, const struct llmi_tensor_row * rows, size_t n_rows, const char * prefix, void * fields) {
    char name[64];
    for (size_t i = 0; i < n_rows; ++i) {
        if (((rows[i].needs | rows[i].may) & m->traits) == 0) { continue; }
        snprintf(name, sizeof name, "%s%s", prefix, rows[i].name);
        LLMI_TRY(
            llmi_make_tensor(m, &rows[i], name, (struct gcuda_tensor **) (void *) ((char *) fields + rows[i].field)));
    }
    return GCUDA_STATUS_SUCCESS;
}

// Refuses tensors that no table names: without them the results would be silently wrong.
static gcuda_status llmi_check_all_used(const struct llm_model * m) {
    for (int64_t i = 0; i < gcuda_gguf_get_n_tensors(m->file.g); ++i) {
        const char * name = gcuda_gguf_get_tensor_name(m->file.g, i);
        const bool is_ignored = strncmp(name, "dense_", 6) == 0 || strstr(name, "attn_rot_embd") != NULL ||
                                strstr(name, "rotary_emb.inv_freq") != NULL;
        if (!is_ignored && gcuda_get_tensor(m->tensors, name) == NULL) {
            return llmi_fail(
                GCUDA_STATUS_UNSUPPORTED, "the tensor '%s' is none that architecture %s has here", name, m->arch->name);
        }
    }
    return GCUDA_STATUS_SUCCESS;
}

static gcuda_status llmi_make_all_tensors(struct llm_model * m) {
    char prefix[24];
    LLMI_TRY(llmi_made(m->layers = LLMI_NEW(m->arena, struct llmi_layer, m->params.n_layers)));
    LLMI_TRY(llmi_make_tensors(m, llmi_weight_rows, sizeof llmi_weight_rows / sizeof *llmi_weight_rows, "", &m->w));
    for (int64_t i = 0; i < m->params.n_layers; ++i) {
        snprintf(prefix, sizeof prefix, "blk.%d.", (int) i);
        LLMI_TRY(llmi_make_tensors(
            m, llmi_layer_rows, sizeof llmi_layer_rows / sizeof *llmi_layer_rows, prefix, &m->layers[i]));
    }
    if (m->w.output == NULL) { m->w.output = m->w.embd; }
    return llmi_check_all_used(m);
}

struct llmi_load_progress {
    llm_progress progress;
    void * user;
};
static bool llmi_on_load(uint64_t done, uint64_t total, void * user) {
    const struct llmi_load_progress * p = (const struct llmi_load_progress *) user;
    return p->progress == NULL || p->progress(p->user, total ? (float) ((double) done / (double) total) : 1.0f);
}

static gcuda_status llmi_add_backend(struct llm_model * m, gcuda_backend_t backend) {
    if (backend == NULL) { return GCUDA_STATUS_INVALID_ARGUMENT; } // the message lists the devices
    const size_t n = strlen(m->backend_names);
    snprintf(m->backend_names + n, sizeof m->backend_names - n, "%s%s", n ? " " : "", gcuda_backend_name(backend));
    m->backends[m->n_backends++] = backend;
    return GCUDA_STATUS_SUCCESS;
}

static gcuda_status llmi_make_backends(struct llm_model * m, const struct llm_model_params * params) {
    const int64_t begin_us = gcuda_time_us();
    const int n = params->n_gpus, n_devices = n > 0 ? gcuda_backend_cuda_get_device_count() : 0;
    if (n < 0 || n >= LLMI_MAX_BACKENDS || n > n_devices || (n > 0 && params->backend != NULL)) {
        return llmi_fail(GCUDA_STATUS_INVALID_ARGUMENT,
            "%d GPUs are wanted, there are %d, at most %d can be used, and no backend may be named", n, n_devices,
            LLMI_MAX_BACKENDS - 1);
    }
    for (int i = 0; i < n; ++i) { LLMI_TRY(llmi_add_backend(m, gcuda_backend_cuda_init(i))); }
    LLMI_TRY(llmi_add_backend(m, n > 0             ? gcuda_backend_cpu_init()
                                 : params->backend ? gcuda_backend_init_by_name(params->backend, NULL)
                                                   : gcuda_backend_init_best()));
    m->load.backend_us = gcuda_time_us() - begin_us;
    return GCUDA_STATUS_SUCCESS;
}

static gcuda_backend_sched_t llmi_make_sched(const gcuda_backend_t * backends, int n, size_t n_nodes) {
    struct gcuda_backend_sched_params params;
    memset(&params, 0, sizeof params);
    params.backends = backends;
    params.n_backends = n;
    params.graph_size = n_nodes;
    return gcuda_backend_sched_new_params(&params);
}

static gcuda_status llmi_load_weights(struct llm_model * m, const struct llm_model_params * params) {
    struct llmi_load_progress progress = { params->progress, params->progress_user };
    struct gcuda_gguf_load_params load;
    memset(&load, 0, sizeof load);
    load.progress = llmi_on_load;
    load.progress_data = &progress;
    if (m->n_backends == 1) {
        load.backend = m->backends[0];
        return gcuda_gguf_load(m->file.g, m->tensors, &load, &m->buffer);
    }
    load.sched = llmi_make_sched(m->backends, m->n_backends, 64); // only to divide the weights
    LLMI_TRY(load.sched ? GCUDA_STATUS_SUCCESS : GCUDA_STATUS_FAILED);
    const gcuda_status st = gcuda_gguf_load(m->file.g, m->tensors, &load, &m->buffer);
    gcuda_backend_sched_free(load.sched);
    return st;
}

// ---- the whole ----

static gcuda_status llmi_find_arch(struct llm_model * m) {
    LLMI_TRY(gcuda_gguf_get_str(m->file.g, "general.architecture", true, &m->file.arch));
    for (size_t i = 0; i < sizeof llmi_archs / sizeof *llmi_archs; ++i) {
        if (strcmp(m->file.arch, llmi_archs[i].name) == 0) { m->arch = &llmi_archs[i]; }
    }
    if (m->arch == NULL) {
        char names[128] = "";
        for (size_t i = 0, n = 0; i < sizeof llmi_archs / sizeof *llmi_archs; ++i) {
            n += (size_t) snprintf(names + n, sizeof names - n, "%s%s", i ? ", " : "", llmi_archs[i].name);
        }
        return llmi_fail(
            GCUDA_STATUS_UNSUPPORTED, "the architecture '%.64s' is not supported; these are: %s", m->file.arch, names);
    }
    m->traits = m->arch->traits;
    return GCUDA_STATUS_SUCCESS;
}

static gcuda_status llmi_open_file(struct llm_model * m, const char * path, const struct llm_model_params * params) {
    gcuda_status st = GCUDA_STATUS_FAILED;
    struct gcuda_gguf_init_params init;
    memset(&init, 0, sizeof init);
    init.status = &st;
    init.no_alloc = true;
    m->file.log = params->log;
    m->file.log_user = params->log_user;
    m->file.g = gcuda_gguf_init_from_file(path, init);
    return m->file.g != NULL ? llmi_find_arch(m) : st;
}

// Everything except weights: vocabulary, parameters, names and shapes of tensors.
static gcuda_status llmi_load_description(struct llm_model * m) {
    const int64_t begin_us = gcuda_time_us();
    LLMI_TRY(llmi_vocab_load(&m->vocab, &m->file, m->arena));
    m->load.vocab_us = gcuda_time_us() - begin_us;
    LLMI_TRY(llmi_load_params(m));
    LLMI_TRY(gcuda_gguf_get_str(m->file.g, "general.name", false, &m->name));
    LLMI_TRY(gcuda_gguf_get_str(m->file.g, "tokenizer.chat_template", false, &m->template_text));
    m->chat = llmi_template_of(m->template_text);
    LLMI_TRY(llmi_made(m->tensors = llmi_arena(0)));
    return llmi_make_all_tensors(m);
}

static gcuda_status llmi_read_file(struct llm_model * m, const char * path, const struct llm_model_params * params) {
    const int64_t begin_us = gcuda_time_us();
    LLMI_TRY(llmi_open_file(m, path, params));
    m->load.file_us = gcuda_time_us() - begin_us;
    return llmi_load_description(m);
}

// Reads a byte of each page of the mapped weights until the thread has finished, so that copies to a GPU have fewer
// page faults. Page faults take a quarter of the time of copying from a mapped file (1.5 GB in the page cache: 0.05 of
// 0.21 s, Xeon, Linux 6.18). No copy can start before the driver has.
static void llmi_touch_weights(const struct llm_model * m, const struct gcuda_thread * thread) {
    enum { PAGE = 4096, PAGES = 256 }; // PAGES: read between two checks of the thread
    for (int64_t i = 0; i < gcuda_gguf_get_n_tensors(m->file.g); ++i) {
        const volatile char * data = (const volatile char *) gcuda_gguf_get_tensor_data(m->file.g, i);
        const size_t n = data != NULL ? gcuda_gguf_get_tensor_size(m->file.g, i) : 0;
        for (size_t at = 0; at < n; at += PAGE) {
            if (at / PAGE % PAGES == 0 && gcuda_thread_is_done(thread)) { return; }
            (void) data[at];
        }
    }
}

struct llmi_starting {
    struct llm_model * m;
    const struct llm_model_params * params;
};
static gcuda_status llmi_start_backends(void * user) {
    const struct llmi_starting * s = (const struct llmi_starting *) user;
    return llmi_make_backends(s->m, s->params);
}

// The backends start on another thread while the file is read. An error of the file comes first.
static gcuda_status llmi_read_and_start(
    struct llm_model * m, const char * path, const struct llm_model_params * params) {
    struct llmi_starting starting = { m, params };
    struct gcuda_thread * thread = gcuda_thread_start(llmi_start_backends, &starting);
    LLMI_TRY(llmi_made(thread));
    const gcuda_status st = llmi_read_file(m, path, params);
    if (st != GCUDA_STATUS_SUCCESS) {
        char message[1024];
        snprintf(message, sizeof message, "%s", gcuda_last_error());
        (void) gcuda_thread_join(thread);
        return gcuda_set_last_error(st, message);
    }
    const int64_t begin_us = gcuda_time_us();
    llmi_touch_weights(m, thread);
    const gcuda_status started = gcuda_thread_join(thread);
    m->load.wait_us = gcuda_time_us() - begin_us;
    return started;
}

static gcuda_status llmi_load(struct llm_model * m, const char * path, const struct llm_model_params * params) {
    const int64_t begin_us = gcuda_time_us();
    LLMI_TRY(llmi_read_and_start(m, path, params));
    const int64_t started_us = gcuda_time_us();
    LLMI_TRY(llmi_load_weights(m, params));
    m->load.weights_us = gcuda_time_us() - started_us;
    m->load.all_us = gcuda_time_us() - begin_us;
    return GCUDA_STATUS_SUCCESS;
}

gcuda_status llm_model_load(const char * path, const struct llm_model_params * params, struct llm_model ** out) {
    struct llm_model_params zeros;
    memset(&zeros, 0, sizeof zeros);
    if (out == NULL || path == NULL) {
        return llmi_fail(GCUDA_STATUS_INVALID_ARGUMENT, "llm_model_load: path or out is NULL");
    }
    *out = NULL;
    struct gcuda_context * arena = llmi_arena(0);
    struct llm_model * m = arena ? LLMI_NEW(arena, struct llm_model, 1) : NULL;
    if (m == NULL) {
        gcuda_free(arena);
        return GCUDA_STATUS_ALLOC_FAILED;
    }
    m->arena = arena;
    m->name = "";
    const gcuda_status st = llmi_load(m, path, params ? params : &zeros);
    if (st != GCUDA_STATUS_SUCCESS) {
        llm_model_free(m);
        return st;
    }
    *out = m;
    return GCUDA_STATUS_SUCCESS;
}

void llm_model_free(struct llm_model * m) {
    if (m == NULL) { return; }
    gcuda_backend_buffer_free(m->buffer);
    gcuda_free(m->tensors);
    gcuda_gguf_free(m->file.g);
    for (int i = 0; i < m->n_backends; ++i) { gcuda_backend_free(m->backends[i]); }
    gcuda_free(m->arena); // and m
}

struct llm_info llm_model_info(const struct llm_model * m) {
    struct llm_info info;
    memset(&info, 0, sizeof info);
    if (m == NULL) {
        info.arch = info.name = info.backend = "";
        return info;
    }
    info.arch = m->arch->name;
    info.name = m->name;
    info.backend = m->backend_names;
    info.template_name = m->chat ? m->chat->name : NULL;
    const struct llmi_params * p = &m->params;
    info.n_vocab = (int32_t) p->n_vocab;
    info.n_ctx_train = (int32_t) p->n_ctx;
    info.n_embd = (int32_t) p->n_embd;
    info.n_layers = (int32_t) p->n_layers;
    info.n_heads = (int32_t) p->n_heads;
    info.n_heads_kv = (int32_t) p->n_kv;
    info.head_size = (int32_t) p->head;
    info.n_experts = (int32_t) p->n_experts;
    info.window = (int32_t) p->window;
    info.n_params = m->n_params;
    info.n_bytes = m->n_bytes;
    info.is_encoder = (m->traits & LLMI_ENCODER) != 0;
    info.load = m->load;
    return info;
}

// ---- tokens of a model ----

static bool llmi_is_token(const struct llm_model * m, int32_t token) {
    return m != NULL && token >= 0 && token < m->vocab.n_tokens;
}
static gcuda_status llmi_check_model(const struct llm_model * m) {
    return m != NULL ? GCUDA_STATUS_SUCCESS : llmi_fail(GCUDA_STATUS_INVALID_ARGUMENT, "the model is NULL");
}

gcuda_status llm_tokenize(const struct llm_model * m, const char * text, size_t n_bytes, int flags, int32_t * tokens,
    size_t capacity, size_t * n_tokens) {
    struct llmi_out out = llmi_out_of(tokens, sizeof *tokens, capacity);
    LLMI_TRY(llmi_check_model(m));
    LLMI_TRY(llmi_tokenize(&m->vocab, text, n_bytes, NULL, 0, flags, &out));
    return llmi_put_done(&out, "tokens", n_tokens);
}

gcuda_status llm_detokenize(const struct llm_model * m, const int32_t * tokens, size_t n_tokens, bool with_special,
    char * text, size_t capacity, size_t * n_bytes) {
    struct llmi_out out = llmi_out_of(text, 1, capacity);
    LLMI_TRY(llmi_check_model(m));
    for (size_t i = 0; i < n_tokens; ++i) {
        if (!llmi_is_token(m, tokens[i])) {
            return llmi_fail(GCUDA_STATUS_INVALID_ARGUMENT, "token %zu is %d, the model has 0 to %d", i, tokens[i],
                m->vocab.n_tokens - 1);
        }
    }
    llmi_detokenize(&m->vocab, tokens, n_tokens, with_special, &out);
    return llmi_put_done(&out, "bytes of text", n_bytes);
}

const char * llm_token_piece(const struct llm_model * m, int32_t token, size_t * n_bytes) {
    const bool is_token = llmi_is_token(m, token);
    *n_bytes = is_token ? m->vocab.piece_at[token + 1] - m->vocab.piece_at[token] : 0;
    return is_token ? m->vocab.piece + m->vocab.piece_at[token] : "";
}
bool llm_token_is_end(const struct llm_model * m, int32_t token) {
    return llmi_is_token(m, token) && m->vocab.is_end[token];
}
bool llm_token_is_special(const struct llm_model * m, int32_t token) {
    return llmi_is_token(m, token) && !llmi_is_shown(&m->vocab, token);
}
int32_t llm_token_bos(const struct llm_model * m) { return m ? m->vocab.bos : -1; }

static gcuda_status llmi_chat_begin(const struct llm_model * m, struct llmi_chat * c, void * text, size_t capacity) {
    memset(c, 0, sizeof *c);
    LLMI_TRY(llmi_check_model(m));
    c->t = m->chat;
    c->text = llmi_out_of(text, 1, capacity);
    if (c->t != NULL) { return GCUDA_STATUS_SUCCESS; }
    return llmi_fail(GCUDA_STATUS_UNSUPPORTED,
        m->template_text ? "the file's tokenizer.chat_template is none that is known here"
                         : "the file has no tokenizer.chat_template: the model is not made for chats");
}

gcuda_status llm_chat_text(const struct llm_model * m, const struct llm_message * messages, size_t n_messages,
    bool is_open, char * text, size_t capacity, size_t * n_bytes) {
    struct llmi_chat c;
    LLMI_TRY(llmi_chat_begin(m, &c, text, capacity));
    LLMI_TRY(llmi_chat_run(&c, messages, n_messages, is_open, m->template_text));
    return llmi_put_done(&c.text, "bytes of text", n_bytes);
}

static gcuda_status llmi_chat_tokenize(const struct llm_model * m, const struct llm_message * messages, size_t n,
    bool is_open, struct gcuda_context * arena, struct llmi_out * out) {
    size_t n_bytes = 0;
    struct llmi_chat c;
    LLMI_TRY(llm_chat_text(m, messages, n, is_open, NULL, 0, &n_bytes));
    char * text = LLMI_NEW(arena, char, n_bytes);
    LLMI_TRY(llmi_made(text));
    LLMI_TRY(llmi_chat_begin(m, &c, text, n_bytes));
    LLMI_TRY(llmi_made(c.plain = LLMI_NEW(arena, struct llmi_range, 2 * n + 1)));
    LLMI_TRY(llmi_chat_run(&c, messages, n, is_open, m->template_text));
    size_t n_bos;
    // not added twice if the template begins with it
    const char * bos = llm_token_piece(m, m->vocab.bos, &n_bos);
    const bool has_bos = n_bos > 0 && n_bos <= n_bytes && memcmp(text, bos, n_bos) == 0 &&
                         (c.n_plain == 0 || c.plain[0].first >= n_bos); // and not where a message begins with it
    return llmi_tokenize(
        &m->vocab, text, n_bytes, c.plain, c.n_plain, LLM_PARSE_SPECIAL | (has_bos ? 0 : LLM_ADD_SPECIAL), out);
}

gcuda_status llm_chat_tokenize(const struct llm_model * m, const struct llm_message * messages, size_t n_messages,
    bool is_open, int32_t * tokens, size_t capacity, size_t * n_tokens) {
    struct llmi_out out = llmi_out_of(tokens, sizeof *tokens, capacity);
    struct gcuda_context * arena = llmi_arena(0);
    LLMI_TRY(llmi_made(arena));
    const gcuda_status st = llmi_chat_tokenize(m, messages, n_messages, is_open, arena, &out);
    gcuda_free(arena);
    LLMI_TRY(st);
    return llmi_put_done(&out, "tokens", n_tokens);
}

// =====================================================================================================
// >>cells   which cell of a cache holds which position of which sequence
// =====================================================================================================

struct llmi_cell {
    int32_t position, token;
    uint64_t seqs; // a bit for each sequence that it belongs to; 0: free
};
// The cache of a layer without a window holds positions [0, length) of a sequence. With a window it is smaller and
// holds [first, length); the next token sees at most the last window - 1 of them.
struct llmi_cells {
    struct llmi_cell * cells;
    int32_t n, n_used, head; // head: start of the search for a free cell
    int32_t end;             // all cells from here on are free; earlier ones may be
    uint32_t version;        // incremented by every change except taking a cell
    int32_t first[LLM_MAX_SEQS], length[LLM_MAX_SEQS];
};

static void llmi_cells_free(struct llmi_cells * c, int32_t i, uint64_t seqs) {
    if ((c->cells[i].seqs & seqs) == 0) { return; }
    c->cells[i].seqs &= ~seqs;
    ++c->version;
    if (c->cells[i].seqs == 0) {
        --c->n_used;
        c->head = (int32_t) llmi_min(c->head, i);
    }
}

// Takes a free cell for the sequence's next position; the caller has checked that one exists.
static int32_t llmi_cells_take(struct llmi_cells * c, int32_t seq, int32_t token) {
    int32_t i = c->head;
    while (c->cells[i].seqs != 0) { i = i + 1 == c->n ? 0 : i + 1; }
    c->cells[i].position = c->length[seq]++;
    c->cells[i].token = token;
    c->cells[i].seqs = (uint64_t) 1 << seq;
    c->head = i + 1 == c->n ? 0 : i + 1;
    c->end = (int32_t) llmi_max(c->end, i + 1);
    ++c->n_used;
    return i;
}

static int32_t llmi_cells_end(const struct llmi_cells * c) { // after the last used cell
    int32_t end = c->end;
    while (end > 0 && c->cells[end - 1].seqs == 0) { --end; }
    return end;
}

static void llmi_cells_truncate(struct llmi_cells * c, int32_t seq, int32_t length) {
    if (length >= c->length[seq]) { return; }
    for (int32_t i = 0; i < c->end; ++i) {
        if (c->cells[i].position >= length) { llmi_cells_free(c, i, (uint64_t) 1 << seq); }
    }
    c->end = llmi_cells_end(c);
    c->length[seq] = length;
    if (length == 0) { c->first[seq] = 0; }
}

// Whether the cells still have all positions that a window at `length` sees.
static bool llmi_cells_can_truncate(const struct llmi_cells * c, int32_t seq, int32_t length, int64_t window) {
    return length == 0 || c->first[seq] == 0 || c->first[seq] <= length - window + 1;
}

// Frees cells that no later token sees.
static void llmi_cells_leave_window(struct llmi_cells * c, int64_t window) {
    for (int32_t seq = 0; seq < LLM_MAX_SEQS; ++seq) {
        c->first[seq] = (int32_t) llmi_max(c->first[seq], c->length[seq] - window + 1);
    }
    for (int32_t i = 0; i < c->end; ++i) {
        uint64_t out = 0;
        for (int32_t seq = 0; seq < LLM_MAX_SEQS && c->cells[i].seqs >> seq != 0; ++seq) {
            if (c->cells[i].position < c->first[seq]) { out |= (uint64_t) 1 << seq; }
        }
        llmi_cells_free(c, i, out);
    }
}

static void llmi_cells_copy(struct llmi_cells * c, int32_t from, int32_t to) {
    for (int32_t i = 0; i < c->end; ++i) { c->cells[i].seqs |= (c->cells[i].seqs >> from & 1) << to; }
    ++c->version;
    c->first[to] = c->first[from];
    c->length[to] = c->length[from];
}

static int32_t llmi_cells_find(const struct llmi_cells * c, int32_t seq, int32_t position) { // -1: none
    for (int32_t i = 0; i < c->end; ++i) {
        if (c->cells[i].position == position && (c->cells[i].seqs >> seq & 1) != 0) { return i; }
    }
    return -1;
}

// A token's row of the mask, as F16: 0 where it sees the cell, else -inf. window 0: none.
static void llmi_cells_mask(
    const struct llmi_cells * c, int32_t seq, int32_t position, int64_t window, uint16_t * row, int32_t n) {
    const int32_t first = window > 0 ? (int32_t) llmi_max(0, position - window + 1) : 0;
    for (int32_t i = 0; i < n; ++i) {
        const struct llmi_cell * cell = &c->cells[i];
        const bool is_seen = (cell->seqs >> seq & 1) != 0 && cell->position >= first && cell->position <= position;
        row[i] = is_seen ? 0 : 0xFC00;
    }
}

// =====================================================================================================
// >>build   graphs
// =====================================================================================================

struct llmi_graph_key {                   // two runs of equal keys use the same graph
    int32_t n_tokens, n_kv[2], n_outputs; // n_kv: cells that attention reads, per cache
    int32_t is_embedding;                 // the result is the input of the output matrix
};

struct llmi_inputs {                                   // tensors that a run sets
    struct gcuda_tensor *tokens, *positions, *outputs; // I32; outputs: the tokens whose logits are wanted
    struct gcuda_tensor * cells[2];                    // I32: cells of the tokens, per cache
    struct gcuda_tensor * mask[2];                     // F16 [n_kv, n_tokens]: of layers without a window, with one
};

struct llmi_build {
    const struct llm_model * m;
    const struct llmi_params * p;
    struct gcuda_context * ctx;
    struct gcuda_cgraph * graph;
    struct gcuda_tensor **k_cache, **v_cache; // of each layer: [head * n_kv, cells]
    struct gcuda_tensor * rotation;           // F32 [n, n], see llmi_turn; NULL: keys and values are stored as they are
    int window_cache;                         // the cache of layers with a window: 0 or 1
    // all inputs, contiguous; offsets depend on the number of tokens alone
    gcuda_backend_buffer_t input_buffer;
    size_t n_input_bytes; // of them in use; buffer NULL: the allocator of the graph places inputs
    struct llmi_inputs in;
    struct llmi_graph_key key;
    // I32 [n_best, n_outputs]: tokens with the largest logits, the graph's result; or NULL
    struct gcuda_tensor * best;
    int n_best;
    bool exact, is_long; // is_long: rope factors for long contexts
};

// Adds the node to the graph now. Nodes that a backend computes in one launch have to be adjacent.
static struct gcuda_tensor * llmi_now(struct llmi_build * b, struct gcuda_tensor * t) {
    (void) gcuda_build_forward_expand(b->graph, t);
    return t;
}

// y = W x + bias; bias NULL: none.
static struct gcuda_tensor * llmi_linear(
    struct llmi_build * b, struct gcuda_tensor * w, struct gcuda_tensor * x, struct gcuda_tensor * bias) {
    struct gcuda_tensor * y = gcuda_mul_mat(b->ctx, w, x);
    if (y != NULL && b->exact) { (void) gcuda_mul_mat_set_prec(y, GCUDA_PREC_F32); }
    return bias ? gcuda_add(b->ctx, y, bias) : y;
}
static struct gcuda_tensor * llmi_linear_id(struct llmi_build * b, struct gcuda_tensor * w, struct gcuda_tensor * x,
    struct gcuda_tensor * ids, struct gcuda_tensor * bias) {
    struct gcuda_tensor * y = gcuda_mul_mat_id(b->ctx, w, x, ids);
    if (y != NULL && b->exact) { (void) gcuda_mul_mat_set_prec(y, GCUDA_PREC_F32); }
    return bias ? gcuda_add_id(b->ctx, y, bias, ids) : y;
}

static struct gcuda_tensor * llmi_norm(struct llmi_build * b, struct gcuda_tensor * x, struct gcuda_tensor * w) {
    return gcuda_mul(b->ctx, gcuda_rms_norm(b->ctx, x, b->p->eps), w);
}
static struct gcuda_tensor * llmi_layer_norm(
    struct llmi_build * b, struct gcuda_tensor * x, struct gcuda_tensor * w, struct gcuda_tensor * bias) {
    return gcuda_add(b->ctx, gcuda_mul(b->ctx, gcuda_norm(b->ctx, x, b->p->eps), w), bias);
}

static struct gcuda_tensor * llmi_input(
    struct llmi_build * b, enum gcuda_type type, int64_t ne0, int64_t ne1, const char * name) {
    struct gcuda_tensor * t = gcuda_new_tensor_2d(b->ctx, type, ne0, ne1);
    if (t == NULL) { return NULL; }
    gcuda_set_input(t);
    return gcuda_set_name(t, name);
}

// ---- attention ----

struct llmi_qkv {
    struct gcuda_tensor *q, *k, *v;
}; // [head, heads, tokens]

static struct gcuda_tensor * llmi_heads(struct llmi_build * b, struct gcuda_tensor * x, int64_t n_heads) {
    return gcuda_reshape_3d(b->ctx, x, b->p->head, n_heads, b->key.n_tokens);
}
// Heads of a row that holds those of q, k and v; `first` is the number of heads before.
static struct gcuda_tensor * llmi_heads_of(
    struct llmi_build * b, struct gcuda_tensor * qkv, int64_t first, int64_t n_heads) {
    if (qkv == NULL) { return NULL; }
    const size_t head_bytes = (size_t) b->p->head * sizeof(float);
    return gcuda_view_3d(
        b->ctx, qkv, b->p->head, n_heads, b->key.n_tokens, head_bytes, qkv->nb[1], (size_t) first * head_bytes);
}

static struct llmi_qkv llmi_project_qkv(struct llmi_build * b, const struct llmi_layer * l, struct gcuda_tensor * x) {
    struct llmi_qkv a;
    const int64_t n_q = b->p->n_heads, n_kv = b->p->n_kv;
    if (l->qkv != NULL) {
        struct gcuda_tensor * qkv = llmi_linear(b, l->qkv, x, l->qkv_b);
        a.q = llmi_heads_of(b, qkv, 0, n_q);
        a.k = llmi_heads_of(b, qkv, n_q, n_kv);
        a.v = llmi_heads_of(b, qkv, n_q + n_kv, n_kv);
    } else {
        a.q = llmi_heads(b, llmi_now(b, llmi_linear(b, l->q, x, l->q_b)), n_q);
        a.k = llmi_heads(b, llmi_now(b, llmi_linear(b, l->k, x, l->k_b)), n_kv);
        a.v = llmi_heads(b, llmi_now(b, llmi_linear(b, l->v, x, l->v_b)), n_kv);
    }
    if (l->q_norm != NULL) { a.q = llmi_now(b, llmi_norm(b, a.q, l->q_norm)); }
    if (l->k_norm != NULL) { a.k = llmi_now(b, llmi_norm(b, a.k, l->k_norm)); }
    return a;
}

static struct gcuda_tensor * llmi_rope_factors(const struct llm_model * m, bool is_long) {
    if (m->w.rope_long != NULL && m->w.rope_short != NULL) { return is_long ? m->w.rope_long : m->w.rope_short; }
    return m->w.rope_freqs;
}

static struct gcuda_tensor * llmi_rotate(struct llmi_build * b, int64_t layer, struct gcuda_tensor * x) {
    const struct llmi_rope * r = &b->p->rope[b->m->has_window[layer]];
    return gcuda_rope_ext(b->ctx, x, b->in.positions, llmi_rope_factors(b->m, b->is_long), (int) b->p->n_rot,
        b->m->arch->rope, (int) b->p->n_ctx_orig, r->base, r->scale, r->extrapolate, r->magnitude, r->beta_fast,
        r->beta_slow);
}

// Multiplies each n elements of x's heads by the Hadamard matrix, divided by sqrt(n): a rotation that spreads single
// large elements over all n and is its own inverse. Rotating queries and keys alike keeps their products.
static struct gcuda_tensor * llmi_turn(struct llmi_build * b, struct gcuda_tensor * x) {
    if (b->rotation == NULL || x == NULL) { return x; }
    struct gcuda_tensor * rows = gcuda_is_contiguous(x) ? x : gcuda_cont(b->ctx, x);
    rows = gcuda_reshape_2d(b->ctx, rows, b->rotation->ne[0], gcuda_nelements(x) / b->rotation->ne[0]);
    struct gcuda_tensor * y = gcuda_mul_mat(b->ctx, b->rotation, rows);
    (void) gcuda_mul_mat_set_prec(y, GCUDA_PREC_F32);
    (void) gcuda_mul_mat_set_hint(y, GCUDA_HINT_SRC0_IS_HADAMARD);
    return gcuda_reshape(b->ctx, y, x);
}

// The first n cells of a cache as [head, cells, heads].
static struct gcuda_tensor * llmi_cache_view(struct llmi_build * b, struct gcuda_tensor * cache, int32_t n) {
    const size_t head_bytes = gcuda_row_size(cache->type, b->p->head);
    struct gcuda_tensor * view = gcuda_view_3d(b->ctx, cache, b->p->head, n, b->p->n_kv, cache->nb[1], head_bytes, 0);
    if (view != NULL) { gcuda_set_dynamic(view); } // its length grows
    return view;
}

// Writes keys or values of the batch into their cells. Added to the graph at once, because the views of the cache are
// read afterwards.
static void llmi_store(
    struct llmi_build * b, struct gcuda_tensor * cache, struct gcuda_tensor * x, struct gcuda_tensor * cells) {
    const int64_t n = b->p->head * b->p->n_kv;
    struct gcuda_tensor * rows = x == NULL                ? NULL
                                 : gcuda_is_contiguous(x) ? gcuda_reshape_2d(b->ctx, x, n, b->key.n_tokens)
                                                          : gcuda_view_2d(b->ctx, x, n, b->key.n_tokens, x->nb[2], 0);
    (void) llmi_now(b, gcuda_set_rows(b->ctx, cache, rows, cells));
}

static struct gcuda_tensor * llmi_attend(struct llmi_build * b, struct gcuda_tensor * q, struct gcuda_tensor * k,
    struct gcuda_tensor * v, struct gcuda_tensor * mask, struct gcuda_tensor * sinks) {
    struct gcuda_tensor * y =
        gcuda_flash_attn_ext(b->ctx, gcuda_permute(b->ctx, q, 0, 2, 1, 3), k, v, mask, b->p->q_scale, 0.0f, 0.0f);
    if (y != NULL && sinks != NULL) { (void) gcuda_flash_attn_ext_add_sinks(y, sinks); }
    if (y != NULL && b->exact) { (void) gcuda_flash_attn_ext_set_prec(y, GCUDA_PREC_F32); }
    return gcuda_reshape_2d(b->ctx, y, b->p->head * b->p->n_heads, b->key.n_tokens);
}

static struct gcuda_tensor * llmi_attention(struct llmi_build * b, int64_t layer, struct gcuda_tensor * x) {
    const struct llmi_layer * l = &b->m->layers[layer];
    const bool has_window = b->m->has_window[layer];
    const int cache = has_window ? b->window_cache : 0;
    const int32_t n_kv = b->key.n_kv[cache];
    struct llmi_qkv a = llmi_project_qkv(b, l, x);
    a.q = llmi_turn(b, llmi_now(b, llmi_rotate(b, layer, a.q)));
    a.k = llmi_turn(b, llmi_rotate(b, layer, a.k));
    // before memory of keys and values is used again: one launch writes all three
    (void) gcuda_build_forward_expand(b->graph, a.q);
    llmi_store(b, b->k_cache[layer], a.k, b->in.cells[cache]);
    llmi_store(b, b->v_cache[layer], llmi_turn(b, a.v), b->in.cells[cache]);
    struct gcuda_tensor * y = llmi_attend(b, a.q, llmi_cache_view(b, b->k_cache[layer], n_kv),
        llmi_cache_view(b, b->v_cache[layer], n_kv), b->in.mask[has_window], l->sinks);
    return llmi_turn(b, y);
}

// ---- feed-forward ----

static struct gcuda_tensor * llmi_gate(struct llmi_build * b, struct gcuda_tensor * gate, struct gcuda_tensor * up) {
    if (b->m->arch->gate == GCUDA_GLU_OP_SWIGLU_OAI) { return gcuda_swiglu_oai(b->ctx, gate, up, 1.702f, 7.0f); }
    return gcuda_glu_split(b->ctx, gate, up, b->m->arch->gate);
}

static struct gcuda_tensor * llmi_dense(struct llmi_build * b, const struct llmi_layer * l, struct gcuda_tensor * x) {
    struct gcuda_tensor * up = llmi_linear(b, l->up, x, l->up_b);
    struct gcuda_tensor * h = l->gate ? llmi_gate(b, llmi_linear(b, l->gate, x, l->gate_b), up)
                                      : gcuda_glu(b->ctx, up, b->m->arch->gate, false);
    return llmi_linear(b, l->down, h, l->down_b);
}

struct llmi_routes {
    struct gcuda_tensor *ids, *weights;
}; // [n_used, tokens], [1, n_used, tokens]

static struct llmi_routes llmi_route(struct llmi_build * b, const struct llmi_layer * l, struct gcuda_tensor * x) {
    const bool top_k_first = (b->m->traits & LLMI_TOP_K_FIRST) != 0;
    const int64_t n_used = b->p->n_used, n_tokens = x ? x->ne[1] : 1;
    struct llmi_routes r;
    struct gcuda_tensor * p = llmi_linear(b, l->router, x, l->router_b);
    if (!top_k_first) { p = gcuda_soft_max(b->ctx, p); }
    r.ids = gcuda_argsort_top_k(b->ctx, p, (int) n_used);
    struct gcuda_tensor * w = gcuda_get_rows(b->ctx, gcuda_reshape_3d(b->ctx, p, 1, b->p->n_experts, n_tokens), r.ids);
    w = gcuda_reshape_2d(b->ctx, w, n_used, n_tokens);
    if (top_k_first) {
        w = gcuda_soft_max(b->ctx, w);
    } else { // weights of the chosen experts sum to 1; at least 2^-14 avoids dividing by 0
        w = gcuda_div(b->ctx, w, gcuda_clamp(b->ctx, gcuda_sum_rows(b->ctx, w), 6.103515625e-5f, INFINITY));
    }
    r.weights = llmi_now(b, gcuda_reshape_3d(b->ctx, w, 1, n_used, n_tokens)); // before the experts' products
    return r;
}

static struct gcuda_tensor * llmi_experts(struct llmi_build * b, const struct llmi_layer * l, struct gcuda_tensor * x) {
    const int64_t n_tokens = x ? x->ne[1] : 1;
    const struct llmi_routes r = llmi_route(b, l, x);
    struct gcuda_tensor *x3 = gcuda_reshape_3d(b->ctx, x, b->p->n_embd, 1, n_tokens), *sum = NULL;
    struct gcuda_tensor * up = llmi_linear_id(b, l->ups, x3, r.ids, l->ups_b);
    struct gcuda_tensor * gate = llmi_linear_id(b, l->gates, x3, r.ids, l->gates_b);
    struct gcuda_tensor * y = llmi_linear_id(b, l->downs, llmi_gate(b, gate, up), r.ids, l->downs_b);
    y = gcuda_mul(b->ctx, y, r.weights);
    for (int64_t i = 0; y != NULL && i < b->p->n_used; ++i) {
        struct gcuda_tensor * one = gcuda_view_2d(b->ctx, y, b->p->n_embd, n_tokens, y->nb[2], (size_t) i * y->nb[1]);
        sum = i == 0 ? one : gcuda_add(b->ctx, sum, one);
    }
    return b->p->n_used == 1 ? gcuda_cont(b->ctx, sum) : sum;
}

// ---- models ----

static struct gcuda_tensor * llmi_decoder_layer(struct llmi_build * b, int64_t layer, struct gcuda_tensor * x) {
    const struct llmi_layer * l = &b->m->layers[layer];
    struct gcuda_tensor * a = llmi_linear(b, l->out, llmi_attention(b, layer, llmi_norm(b, x, l->attn_norm)), l->out_b);
    if (l->attn_post_norm != NULL) { a = llmi_norm(b, a, l->attn_post_norm); }
    // the rest is computed for the output tokens alone
    if (layer + 1 == b->p->n_layers && b->key.n_outputs < b->key.n_tokens) {
        a = gcuda_get_rows(b->ctx, a, b->in.outputs);
        x = gcuda_get_rows(b->ctx, x, b->in.outputs);
    }
    x = gcuda_add(b->ctx, x, a);
    struct gcuda_tensor * h = llmi_norm(b, x, l->ffn_norm);
    h = l->router ? llmi_experts(b, l, h) : llmi_dense(b, l, h);
    if (l->ffn_post_norm != NULL) { h = llmi_norm(b, h, l->ffn_post_norm); }
    return gcuda_add(b->ctx, x, h);
}

static struct gcuda_tensor * llmi_best_logits(struct llmi_build * b, struct gcuda_tensor * logits) {
    b->best = b->n_best > 1 ? gcuda_top_k(b->ctx, logits, b->n_best)
                            : gcuda_reshape_2d(b->ctx, gcuda_argmax(b->ctx, logits), 1, b->key.n_outputs);
    if (b->best != NULL) { gcuda_set_output(gcuda_set_name(b->best, "best tokens")); }
    struct gcuda_tensor * rows = gcuda_reshape_3d(b->ctx, logits, 1, b->p->n_vocab, b->key.n_outputs);
    return gcuda_get_rows(b->ctx, rows, b->best);
}

static struct gcuda_tensor * llmi_decoder(struct llmi_build * b) {
    struct gcuda_tensor * x = gcuda_get_rows(b->ctx, b->m->w.embd, b->in.tokens);
    if ((b->m->traits & LLMI_SCALE_EMBD) != 0) { x = gcuda_scale(b->ctx, x, sqrtf((float) b->p->n_embd)); }
    for (int64_t i = 0; i < b->p->n_layers; ++i) { x = llmi_decoder_layer(b, i, x); }
    x = llmi_norm(b, x, b->m->w.output_norm);
    if (b->key.is_embedding) { return x; }
    struct gcuda_tensor * logits = llmi_linear(b, b->m->w.output, x, b->m->w.output_b);
    if (b->p->softcap > 0.0f) {
        logits =
            gcuda_scale(b->ctx, gcuda_tanh(b->ctx, gcuda_scale(b->ctx, logits, 1.0f / b->p->softcap)), b->p->softcap);
    }
    return b->n_best > 0 ? llmi_best_logits(b, logits) : logits;
}

static struct gcuda_tensor * llmi_encoder_layer(
    struct llmi_build * b, const struct llmi_layer * l, struct gcuda_tensor * x) {
    const struct llmi_qkv a = llmi_project_qkv(b, l, x);
    struct gcuda_tensor * y = llmi_attend(
        b, a.q, gcuda_permute(b->ctx, a.k, 0, 2, 1, 3), gcuda_permute(b->ctx, a.v, 0, 2, 1, 3), b->in.mask[0], NULL);
    x = llmi_layer_norm(
        b, gcuda_add(b->ctx, x, llmi_linear(b, l->out, y, l->out_b)), l->attn_out_norm, l->attn_out_norm_b);
    y = llmi_linear(b, l->down, gcuda_gelu(b->ctx, llmi_linear(b, l->up, x, l->up_b)), l->down_b);
    return llmi_layer_norm(b, gcuda_add(b->ctx, x, y), l->out_norm, l->out_norm_b);
}

static struct gcuda_tensor * llmi_encoder(struct llmi_build * b) {
    struct gcuda_tensor * x = gcuda_get_rows(b->ctx, b->m->w.embd, b->in.tokens);
    if (b->m->w.type_embd != NULL) {
        x = gcuda_add(b->ctx, x, gcuda_view_1d(b->ctx, b->m->w.type_embd, b->p->n_embd, 0));
    }
    x = gcuda_add(b->ctx, x, gcuda_get_rows(b->ctx, b->m->w.position_embd, b->in.positions));
    x = llmi_layer_norm(b, x, b->m->w.embd_norm, b->m->w.embd_norm_b);
    for (int64_t i = 0; i < b->p->n_layers; ++i) { x = llmi_encoder_layer(b, &b->m->layers[i], x); }
    return x;
}

enum { LLMI_INPUT_ALIGN = 256 };

static gcuda_status llmi_place_input(struct llmi_build * b, struct gcuda_tensor * t) {
    if (t == NULL || b->input_buffer == NULL) { return GCUDA_STATUS_SUCCESS; }
    char * at = (char *) gcuda_backend_buffer_get_base(b->input_buffer) + b->n_input_bytes;
    t->buffer = NULL; // in a graph that is resized: its old address
    t->data = NULL;
    b->n_input_bytes += (size_t) llmi_pad((int64_t) gcuda_nbytes(t), LLMI_INPUT_ALIGN);
    return gcuda_backend_tensor_alloc(b->input_buffer, t, at);
}

// Masks are last. The one of layers without a window grows, so it comes after the other.
static gcuda_status llmi_place_inputs(struct llmi_build * b) {
    struct gcuda_tensor * all[7] = { b->in.tokens, b->in.positions, b->in.outputs, b->in.cells[0], b->in.cells[1],
        b->in.mask[1], b->in.mask[0] };
    b->n_input_bytes = 0;
    for (int i = 0; i < 7; ++i) { LLMI_TRY(llmi_place_input(b, all[i])); }
    return GCUDA_STATUS_SUCCESS;
}

static void llmi_make_inputs(struct llmi_build * b) {
    const struct llmi_graph_key * k = &b->key;
    memset(&b->in, 0, sizeof b->in);
    b->in.tokens = llmi_input(b, GCUDA_TYPE_I32, k->n_tokens, 1, "tokens");
    b->in.positions = llmi_input(b, GCUDA_TYPE_I32, k->n_tokens, 1, "positions");
    b->in.mask[0] = llmi_input(b, GCUDA_TYPE_F16, k->n_kv[0], k->n_tokens, "mask");
    if ((b->m->traits & LLMI_ENCODER) == 0) {
        b->in.outputs = llmi_input(b, GCUDA_TYPE_I32, k->n_outputs, 1, "outputs");
        b->in.cells[0] = llmi_input(b, GCUDA_TYPE_I32, k->n_tokens, 1, "cells");
    }
    if (b->window_cache == 1) { b->in.cells[1] = llmi_input(b, GCUDA_TYPE_I32, k->n_tokens, 1, "cells of windows"); }
    if (b->p->window > 0) {
        b->in.mask[1] = llmi_input(b, GCUDA_TYPE_F16, k->n_kv[b->window_cache], k->n_tokens, "mask of windows");
    }
    for (int i = 0; i < 2; ++i) {
        if (b->in.mask[i] != NULL) { gcuda_set_dynamic(b->in.mask[i]); }
    }
}

// Gives masks and cache views the sizes of the key. Nothing else in a decoder's graph depends on them: nodes and their
// memory stay.
static gcuda_status llmi_resize_graph(struct llmi_build * b) {
    for (int i = 0; i < 2; ++i) {
        struct gcuda_tensor * mask = b->in.mask[i];
        if (mask == NULL) { continue; }
        mask->ne[0] = b->key.n_kv[i * b->window_cache];
        mask->nb[1] = (size_t) mask->ne[0] * mask->nb[0];
        mask->nb[2] = mask->nb[3] = (size_t) mask->ne[1] * mask->nb[1];
    }
    for (int i = 0; i < gcuda_graph_n_nodes(b->graph); ++i) {
        struct gcuda_tensor * t = gcuda_graph_nodes(b->graph)[i];
        // keys, values, mask
        if (t->op == GCUDA_OP_FLASH_ATTN_EXT) { t->src[1]->ne[1] = t->src[2]->ne[1] = t->src[3]->ne[0]; }
    }
    return llmi_place_inputs(b);
}

static gcuda_status llmi_build_graph(struct llmi_build * b, size_t max_nodes, struct gcuda_tensor ** result) {
    gcuda_reset(b->ctx);
    b->graph = gcuda_new_graph_custom(b->ctx, max_nodes, false);
    LLMI_TRY(b->graph ? GCUDA_STATUS_SUCCESS : gcuda_context_status(b->ctx));
    llmi_make_inputs(b);
    LLMI_TRY(llmi_place_inputs(b));
    b->best = NULL;
    *result = (b->m->traits & LLMI_ENCODER) != 0 ? llmi_encoder(b) : llmi_decoder(b);
    if (*result != NULL) { gcuda_set_output(gcuda_set_name(*result, "result")); }
    return gcuda_build_forward_expand(b->graph, *result);
}

// =====================================================================================================
// >>session   evaluating batches
// =====================================================================================================

struct llmi_pick { // what the sampler may choose
    float logit;
    int32_t token;
};

enum { LLMI_MAX_MASK = 64 << 20 }; // bytes
enum { LLMI_MAX_ROTATION = 256, LLMI_KV_STEP = 256, LLMI_NODES_PER_LAYER = 96, LLMI_NODES_PER_SLICE = 8 };

struct llm_session {
    const struct llm_model * m;
    struct llm_session_params params;
    int n_caches;                                    // 2: layers with a window have a smaller one
    int32_t n_rows[2];                               // of each cache
    struct gcuda_context * arena;                    // of this struct and its arrays
    gcuda_backend_t backends[LLMI_MAX_BACKENDS];     // of the devices of the model's
    gcuda_gallocr_t galloc;                          // with one backend
    gcuda_backend_sched_t sched;                     // with several
    gcuda_backend_event_t event;                     // NULL: the graph is computed when the call returns
    struct gcuda_context * cache[LLMI_MAX_BACKENDS]; // descriptions; each layer's is on the device of its weights
    gcuda_backend_buffer_t cache_buffer[LLMI_MAX_BACKENDS];
    struct llmi_cells cells[2];
    struct llmi_build build;      // the graph of the last run
    struct gcuda_tensor * result; // of it; NULL: there is no graph
    // of a device: for the last graph with one token per sequence, and for the last other graph; NULL: none
    gcuda_backend_graph_plan_t plans[2];
    // inputs and results. One backend: inputs are copied together, or the host writes device memory if it can
    struct gcuda_context * input_ctx;
    struct gcuda_tensor * input_bytes;  // I8: the whole buffer of inputs
    gcuda_backend_buffer_t host_buffer; // page-locked: staged inputs, logits, best tokens; NULL: in the arena
    char * staging;                     // of inputs; NULL: each is copied separately
    size_t max_nodes;
    // the batch
    int32_t *tokens, *seqs;
    bool * wants;
    int32_t n_batch, n_done;
    // the chunk being computed: n_chunk 0: none
    int32_t n_chunk, n_chunk_outputs, node;
    bool is_shifting; // progress is not asked
    int32_t *chunk_cells[2], *chunk_positions, *chunk_outputs;
    uint16_t * masks[2]; // backend on which the scheduler places inputs
    // the last row that was made; row NULL: none
    struct {
        const uint16_t * row;
        int32_t n_kv, seq, position;
        uint32_t version;
    } last_mask;
    // results
    float * logits; // [n_vocab] or [n_best] of each output
    int32_t * best; // [n_best] of each output: their tokens
    int32_t *output_seqs, n_outputs;
    struct llmi_pick * picks; // of the sampler: n_vocab
};

static int64_t llmi_n_nodes(const struct llm_model * m) { return LLMI_NODES_PER_LAYER * (m->params.n_layers + 1); }

static bool llmi_on_abort(void * user) {
    const struct llm_session * s = (const struct llm_session *) user;
    const float share = s->n_batch > 0 ? (float) s->n_done / (float) s->n_batch : 0.0f;
    return !s->is_shifting && !s->params.progress(s->params.progress_user, share);
}

static gcuda_status llmi_session_backends(struct llm_session * s) {
    for (int i = 0; i < s->m->n_backends; ++i) {
        s->backends[i] = gcuda_backend_dev_init(gcuda_backend_get_device(s->m->backends[i]), NULL);
        if (s->backends[i] == NULL) { return GCUDA_STATUS_FAILED; }
        if (!gcuda_backend_is_cpu(s->backends[i])) { continue; }
        LLMI_TRY(gcuda_backend_cpu_set_n_threads(s->backends[i], s->params.n_threads));
        if (s->params.progress != NULL) {
            LLMI_TRY(gcuda_backend_cpu_set_abort_callback(s->backends[i], llmi_on_abort, s));
        }
    }
    if (s->m->n_backends > 1) {
        s->sched = llmi_make_sched(s->backends, s->m->n_backends, (size_t) llmi_n_nodes(s->m));
        return s->sched ? GCUDA_STATUS_SUCCESS : GCUDA_STATUS_FAILED;
    }
    LLMI_TRY(llmi_made(s->galloc = gcuda_gallocr_new(gcuda_backend_get_default_buffer_type(s->backends[0]))));
    if (gcuda_backend_is_cpu(s->backends[0])) { return GCUDA_STATUS_SUCCESS; }
    return llmi_made(s->event = gcuda_backend_event_new(gcuda_backend_get_device(s->backends[0])));
}

// Backend that reads the tensor without a copy.
static int llmi_backend_of(const struct llm_session * s, const struct gcuda_tensor * t) {
    int i = 0;
    while (i + 1 < s->m->n_backends &&
           !gcuda_backend_supports_buft(s->backends[i], gcuda_backend_buffer_get_type(t->buffer))) {
        ++i;
    }
    return i;
}

// Writes the Hadamard matrix of n rows: element (i, j) is negative if i and j have an odd number of ones in common.
static gcuda_status llmi_set_rotation(struct llm_session * s) {
    const int64_t n = s->build.rotation->ne[0];
    float * row = s->logits; // set before anything is computed
    for (int64_t i = 0; i < n; ++i) {
        for (int64_t j = 0; j < n; ++j) {
            int64_t common = i & j;
            bool is_odd = false;
            for (; common != 0; common &= common - 1) { is_odd = !is_odd; }
            row[j] = (is_odd ? -1.0f : 1.0f) / sqrtf((float) n);
        }
        LLMI_TRY(gcuda_backend_tensor_set(
            s->build.rotation, row, (size_t) (i * n) * sizeof(float), (size_t) n * sizeof(float)));
    }
    return GCUDA_STATUS_SUCCESS;
}

// Its size is the largest power of 2 that divides a head, at most LLMI_MAX_ROTATION.
static gcuda_status llmi_make_rotation(struct llm_session * s) {
    int64_t n = 1;
    while (n < LLMI_MAX_ROTATION && s->m->params.head % (2 * n) == 0) { n *= 2; }
    struct gcuda_context ** ctx = &s->cache[0];
    if (*ctx == NULL) { LLMI_TRY(llmi_made(*ctx = llmi_arena(0))); }
    s->build.rotation = gcuda_set_name(gcuda_new_tensor_2d(*ctx, GCUDA_TYPE_F32, n, n), "rotation");
    return gcuda_context_status(*ctx);
}

static gcuda_status llmi_cache_layer(struct llm_session * s, int64_t i) {
    const struct llmi_layer * l = &s->m->layers[i];
    const int64_t size = s->m->params.head * s->m->params.n_kv,
                  n_rows = s->n_rows[s->m->has_window[i] ? s->build.window_cache : 0];
    struct gcuda_context ** ctx = &s->cache[llmi_backend_of(s, l->qkv ? l->qkv : l->k)];
    if (*ctx == NULL) { LLMI_TRY(llmi_made(*ctx = llmi_arena(0))); }
    s->build.k_cache[i] = gcuda_new_tensor_2d(*ctx, s->params.kv_type, size, n_rows);
    s->build.v_cache[i] = gcuda_new_tensor_2d(*ctx, s->params.kv_type, size, n_rows);
    (void) gcuda_format_name(s->build.k_cache[i], "k cache %d", (int) i);
    (void) gcuda_format_name(s->build.v_cache[i], "v cache %d", (int) i);
    return gcuda_context_status(*ctx);
}

// Caches of keys and values, zero-filled: cells without a token get weight 0 and must not contain NaN.
static gcuda_status llmi_session_cache(struct llm_session * s) {
    const struct llmi_params * p = &s->m->params;
    const enum gcuda_type type = s->params.kv_type;
    LLMI_TRY(llmi_made(s->build.k_cache = LLMI_NEW(s->arena, struct gcuda_tensor *, p->n_layers)));
    LLMI_TRY(llmi_made(s->build.v_cache = LLMI_NEW(s->arena, struct gcuda_tensor *, p->n_layers)));
    if ((s->m->traits & LLMI_ENCODER) != 0) { return GCUDA_STATUS_SUCCESS; }
    if (p->head % gcuda_blck_size(type) != 0) {
        return llmi_fail(GCUDA_STATUS_UNSUPPORTED,
            "a cache of type %s needs heads of a multiple of %lld elements, the model's have %lld",
            gcuda_type_name(type), (long long) gcuda_blck_size(type), (long long) p->head);
    }
    for (int64_t i = 0; i < p->n_layers; ++i) { LLMI_TRY(llmi_cache_layer(s, i)); }
    if (type == GCUDA_TYPE_Q4_0) { LLMI_TRY(llmi_make_rotation(s)); }
    for (int i = 0; i < s->m->n_backends; ++i) {
        if (s->cache[i] == NULL) { continue; }
        LLMI_TRY(llmi_made(s->cache_buffer[i] = gcuda_backend_alloc_ctx_tensors(s->cache[i], s->backends[i])));
        LLMI_TRY(gcuda_backend_buffer_clear(s->cache_buffer[i], 0));
    }
    return s->build.rotation ? llmi_set_rotation(s) : GCUDA_STATUS_SUCCESS;
}

static size_t llmi_mask_bytes(const struct llm_session * s, int cache) { // of a whole chunk
    return (size_t) s->params.n_chunk * (size_t) s->n_rows[cache] * sizeof(uint16_t);
}

// One buffer for all inputs; staged in page-locked memory unless the host can write them in place.
static gcuda_status llmi_session_inputs(struct llm_session * s) {
    const int64_t n = llmi_max(s->params.n_chunk, s->params.n_outputs) * (int64_t) sizeof(int32_t);
    const size_t window = s->m->params.window > 0 ? llmi_mask_bytes(s, s->build.window_cache) : 0;
    const size_t size =
        (size_t) (5 * llmi_pad(n, LLMI_INPUT_ALIGN)) + llmi_mask_bytes(s, 0) + window + 2 * LLMI_INPUT_ALIGN;
    LLMI_TRY(llmi_made(s->input_ctx = llmi_arena(0)));
    s->input_bytes = gcuda_set_name(gcuda_new_tensor_1d(s->input_ctx, GCUDA_TYPE_I8, (int64_t) size), "inputs");
    LLMI_TRY(gcuda_context_status(s->input_ctx));
    LLMI_TRY(llmi_made(s->build.input_buffer = gcuda_backend_alloc_ctx_tensors(s->input_ctx, s->backends[0])));
    if (gcuda_backend_buffer_is_host(s->build.input_buffer)) { s->staging = (char *) s->input_bytes->data; }
    return GCUDA_STATUS_SUCCESS;
}

// Host memory for results and inputs: page-locked, or copies would wait for the device.
static gcuda_status llmi_session_host(struct llm_session * s, size_t n_logits, size_t n_best) {
    const gcuda_backend_buffer_type_t buft =
        s->event ? gcuda_backend_dev_host_buffer_type(gcuda_backend_get_device(s->backends[0])) : NULL;
    const size_t n_staging =
        s->input_bytes ? (size_t) llmi_pad((int64_t) gcuda_nbytes(s->input_bytes), LLMI_INPUT_ALIGN) : 0;
    if (buft == NULL) {
        LLMI_TRY(llmi_made(s->logits = LLMI_NEW(s->arena, float, n_logits)));
        return llmi_made(s->best = LLMI_NEW(s->arena, int32_t, n_best));
    }
    LLMI_TRY(llmi_made(s->host_buffer = gcuda_backend_buft_alloc_buffer(buft, n_staging + (n_logits + n_best) * 4)));
    char * base = (char *) gcuda_backend_buffer_get_base(s->host_buffer);
    if (s->staging == NULL) { s->staging = base; }
    s->logits = (float *) (void *) (base + n_staging);
    s->best = (int32_t *) (void *) (s->logits + n_logits);
    return GCUDA_STATUS_SUCCESS;
}

static gcuda_status llmi_session_arrays(struct llm_session * s) {
    const struct llmi_params * p = &s->m->params;
    const struct llm_session_params * q = &s->params;
    const size_t n_outputs = (size_t) llmi_max(q->n_outputs, 1), n_chunk = (size_t) q->n_chunk;
    // or hidden states
    const size_t logits =
        (size_t) llmi_max((int64_t) n_outputs * p->n_vocab, q->n_chunk * p->n_embd) + LLMI_MAX_ROTATION;
    s->cells[0].n = q->n_ctx;
    s->cells[1].n = s->n_rows[1];
    for (int i = 0; i < s->n_caches; ++i) {
        LLMI_TRY(llmi_made(s->cells[i].cells = LLMI_NEW(s->arena, struct llmi_cell, s->n_rows[i])));
        LLMI_TRY(llmi_made(s->chunk_cells[i] = LLMI_NEW(s->arena, int32_t, n_chunk)));
    }
    LLMI_TRY(llmi_made(s->tokens = LLMI_NEW(s->arena, int32_t, q->n_ctx)));
    LLMI_TRY(llmi_made(s->seqs = LLMI_NEW(s->arena, int32_t, q->n_ctx)));
    LLMI_TRY(llmi_made(s->wants = LLMI_NEW(s->arena, bool, q->n_ctx)));
    LLMI_TRY(llmi_made(s->chunk_positions = LLMI_NEW(s->arena, int32_t, q->n_chunk)));
    LLMI_TRY(llmi_made(s->chunk_outputs = LLMI_NEW(s->arena, int32_t, q->n_chunk)));
    if (s->sched == NULL) { LLMI_TRY(llmi_session_inputs(s)); }
    LLMI_TRY(llmi_session_host(s, logits, n_outputs * (size_t) q->n_best));
    for (int i = 0; i < (p->window > 0 ? 2 : 1) && s->staging == NULL; ++i) {
        LLMI_TRY(
            llmi_made(s->masks[i] = LLMI_NEW(s->arena, uint16_t, llmi_mask_bytes(s, i * s->build.window_cache) / 2)));
    }
    LLMI_TRY(llmi_made(s->output_seqs = LLMI_NEW(s->arena, int32_t, n_outputs)));
    return llmi_made(s->picks = LLMI_NEW(s->arena, struct llmi_pick, p->n_vocab));
}

static gcuda_status llmi_place(struct llm_session * s) {
    return s->sched ? gcuda_backend_sched_alloc_graph(s->sched, s->build.graph)
                    : gcuda_gallocr_alloc_graph(s->galloc, s->build.graph);
}

static gcuda_status llmi_compute(struct llm_session * s) { // and waits
    return s->sched ? gcuda_backend_sched_graph_compute(s->sched, s->build.graph)
                    : gcuda_backend_graph_compute(s->backends[0], s->build.graph);
}

// Plan that computes the graph; NULL: the backend or the scheduler computes it.
static gcuda_backend_graph_plan_t * llmi_plan_of(struct llm_session * s) {
    return s->event == NULL || s->build.key.is_embedding ? NULL : &s->plans[s->build.key.n_tokens > s->params.n_seqs];
}

// Computing a plan reads no node. The plan of one token per sequence is used again and again: when the cache views
// change size it is updated, and the second token afterwards captures it again. The plan of a prompt is used once: it
// is launched without the cost of a CUDA graph.
static gcuda_status llmi_use_plan(struct llm_session * s, gcuda_backend_graph_plan_t * plan) {
    const bool is_other = plan == &s->plans[1];
    if (*plan != NULL && !is_other &&
        gcuda_backend_graph_plan_update(s->backends[0], *plan, s->build.graph) == GCUDA_STATUS_SUCCESS) {
        return GCUDA_STATUS_SUCCESS;
    }
    if (*plan != NULL) { gcuda_backend_graph_plan_free(s->backends[0], *plan); }
    *plan = gcuda_backend_graph_plan_create(s->backends[0], s->build.graph);
    return llmi_made(*plan);
}

// Whether resizing the cache views turns the last graph into that of the key: with one backend, which has a buffer for
// all inputs.
static bool llmi_can_resize(const struct llm_session * s, const struct llmi_graph_key * key) {
    const struct llmi_graph_key * old = &s->build.key;
    return s->result != NULL && s->build.input_buffer != NULL && (s->m->traits & LLMI_ENCODER) == 0 &&
           !key->is_embedding && !old->is_embedding && key->n_tokens == old->n_tokens &&
           key->n_outputs == old->n_outputs;
}

// The graph of a key, placed in memory. The previous graph is reused if its key was the same, or differs only in the
// number of cells.
static gcuda_status llmi_use_graph(struct llm_session * s, struct llmi_graph_key key) {
    if (s->result != NULL && memcmp(&key, &s->build.key, sizeof key) == 0) { return GCUDA_STATUS_SUCCESS; }
    struct gcuda_tensor * result = llmi_can_resize(s, &key) ? s->result : NULL;
    const bool is_old = result != NULL;
    s->result = NULL;
    s->build.key = key;
    LLMI_TRY(is_old ? llmi_resize_graph(&s->build) : llmi_build_graph(&s->build, s->max_nodes, &result));
    if (!is_old) { LLMI_TRY(llmi_place(s)); }
    gcuda_backend_graph_plan_t * plan = llmi_plan_of(s);
    if (plan != NULL) { LLMI_TRY(llmi_use_plan(s, plan)); }
    s->result = result;
    return GCUDA_STATUS_SUCCESS;
}

// Memory for the largest graph, so that later graphs allocate nothing.
static gcuda_status llmi_session_reserve(struct llm_session * s) {
    const int32_t n_outputs = (int32_t) llmi_min(s->params.n_outputs, s->params.n_chunk);
    const struct llmi_graph_key largest = { s->params.n_chunk, { s->n_rows[0], s->n_rows[1] }, n_outputs, 0 };
    struct gcuda_tensor * result = NULL;
    s->max_nodes = (size_t) llmi_n_nodes(s->m);
    s->build.m = s->m;
    s->build.p = &s->m->params;
    s->build.key = largest;
    s->build.exact = s->params.exact;
    s->build.n_best = s->params.n_best;
    s->build.is_long = s->params.n_ctx > s->m->params.n_ctx_orig;
    const size_t size = 2 * s->max_nodes * gcuda_tensor_overhead() + gcuda_graph_overhead_custom(s->max_nodes, false);
    LLMI_TRY(llmi_made(s->build.ctx = llmi_arena(size)));
    LLMI_TRY(llmi_build_graph(&s->build, s->max_nodes, &result));
    return s->sched ? gcuda_backend_sched_reserve(s->sched, s->build.graph)
                    : gcuda_gallocr_reserve(s->galloc, s->build.graph);
}

// A GPU computes many tokens at a time faster. Limits: the F32 activations between layers fit in an eighth of its free
// memory, and the mask is not larger than LLMI_MAX_MASK.
static int32_t llmi_default_chunk(const struct llm_model * m, int32_t n_ctx) {
    const struct llmi_params * p = &m->params;
    const int64_t n_ff = llmi_max(p->n_ff, p->n_used * (p->n_ff_expert + p->n_embd)),
                  n_token = 8 * p->n_embd + 3 * n_ff;
    size_t n_free = 0, n_all = 0;
    int32_t n = 2048;
    if ((m->traits & LLMI_ENCODER) != 0) { return n_ctx; }
    if (gcuda_backend_is_cpu(m->backends[0]) ||
        gcuda_backend_dev_memory(gcuda_backend_get_device(m->backends[0]), &n_free, &n_all) != GCUDA_STATUS_SUCCESS) {
        return 256;
    }
    while (n > 256 && ((int64_t) n * n_token * 4 > (int64_t) (n_free / 8) || (int64_t) n * n_ctx * 2 > LLMI_MAX_MASK)) {
        n /= 2;
    }
    return n;
}

static gcuda_status llmi_check_kv_type(enum gcuda_type type) {
    static const enum gcuda_type types[] = { GCUDA_TYPE_F16, GCUDA_TYPE_BF16, GCUDA_TYPE_F32, GCUDA_TYPE_Q8_0,
        GCUDA_TYPE_Q4_0 };
    for (size_t i = 0; i < sizeof types / sizeof *types; ++i) {
        if (type == types[i]) { return GCUDA_STATUS_SUCCESS; }
    }
    return llmi_fail(GCUDA_STATUS_UNSUPPORTED,
        "llm_session_new: kv_type is %d; a cache can be F16, BF16, F32, Q8_0 or Q4_0", (int) type);
}

static gcuda_status llmi_session_defaults(struct llm_session_params * q, const struct llm_model * m) {
    const bool is_encoder = (m->traits & LLMI_ENCODER) != 0;
    const int64_t n_ctx = m->params.n_ctx;
    if (q->n_ctx < 0 || q->n_seqs < 0 || q->n_chunk < 0 || q->n_outputs < 0 || q->n_threads < 0 ||
        q->n_seqs > LLM_MAX_SEQS || q->n_ctx > 1 << 26) {
        return llmi_fail(GCUDA_STATUS_INVALID_ARGUMENT,
            "llm_session_new: n_ctx %d (at most %d), n_seqs %d (at most %d), n_chunk %d, n_outputs %d, n_threads %d",
            q->n_ctx, 1 << 26, q->n_seqs, (int) LLM_MAX_SEQS, q->n_chunk, q->n_outputs, q->n_threads);
    }
    if (q->n_best < 0 || q->n_best > m->params.n_vocab) {
        return llmi_fail(GCUDA_STATUS_INVALID_ARGUMENT, "llm_session_new: n_best %d of %lld tokens", q->n_best,
            (long long) m->params.n_vocab);
    }
    if (q->n_ctx == 0) { q->n_ctx = (int32_t) llmi_min(n_ctx, 4096); }
    if (is_encoder) { q->n_ctx = (int32_t) llmi_min(q->n_ctx, n_ctx); } // it has embeddings of positions
    if (q->n_chunk == 0) { q->n_chunk = llmi_default_chunk(m, q->n_ctx); }
    q->n_chunk = (int32_t) llmi_min(q->n_chunk, q->n_ctx);
    if (is_encoder) { q->n_ctx = q->n_chunk; } // a text is one chunk
    if (q->n_seqs == 0) { q->n_seqs = 1; }
    if (q->n_outputs == 0) { q->n_outputs = q->n_seqs; }
    if (!q->kv_is_set) { q->kv_type = GCUDA_TYPE_F16; }
    return llmi_check_kv_type(q->kv_type);
}

// Rows of the caches. A cache of windows has the window of each sequence and a chunk, or the whole context if that is
// less.
static void llmi_session_caches(struct llm_session * s) {
    const struct llm_session_params * q = &s->params;
    const bool is_encoder = (s->m->traits & LLMI_ENCODER) != 0;
    const int64_t small = llmi_pad(llmi_min(s->m->params.window, q->n_ctx) * q->n_seqs + q->n_chunk, LLMI_KV_STEP);
    s->n_rows[0] = is_encoder ? q->n_ctx : (int32_t) llmi_pad(q->n_ctx, LLMI_KV_STEP);
    s->n_caches = s->m->params.window > 0 && small < s->n_rows[0] ? 2 : 1;
    s->n_rows[1] = s->n_caches == 2 ? (int32_t) small : 0;
    s->build.window_cache = s->n_caches - 1;
}

static gcuda_status llmi_session_init(struct llm_session * s) {
    llmi_session_caches(s);
    LLMI_TRY(llmi_session_backends(s));
    LLMI_TRY(llmi_session_arrays(s));
    LLMI_TRY(llmi_session_cache(s));
    return llmi_session_reserve(s);
}

gcuda_status llm_session_new(
    const struct llm_model * m, const struct llm_session_params * params, struct llm_session ** out) {
    if (m == NULL || out == NULL) {
        return llmi_fail(GCUDA_STATUS_INVALID_ARGUMENT, "llm_session_new: model or out is NULL");
    }
    *out = NULL;
    struct llm_session_params filled;
    memset(&filled, 0, sizeof filled);
    if (params != NULL) { filled = *params; }
    LLMI_TRY(llmi_session_defaults(&filled, m));
    struct gcuda_context * arena = llmi_arena(0);
    struct llm_session * s = arena ? LLMI_NEW(arena, struct llm_session, 1) : NULL;
    if (s == NULL) {
        gcuda_free(arena);
        return GCUDA_STATUS_ALLOC_FAILED;
    }
    s->arena = arena;
    s->m = m;
    s->params = filled;
    const gcuda_status st = llmi_session_init(s);
    if (st != GCUDA_STATUS_SUCCESS) {
        llm_session_free(s);
        return st;
    }
    *out = s;
    return GCUDA_STATUS_SUCCESS;
}

void llm_session_free(struct llm_session * s) {
    if (s == NULL) { return; }
    for (int i = 0; i < s->m->n_backends && s->backends[i] != NULL; ++i) {
        (void) gcuda_backend_synchronize(s->backends[i]);
    }
    for (int i = 0; i < 2; ++i) {
        if (s->plans[i] != NULL) { gcuda_backend_graph_plan_free(s->backends[0], s->plans[i]); }
    }
    gcuda_backend_sched_free(s->sched);
    gcuda_gallocr_free(s->galloc);
    gcuda_free(s->build.ctx);
    gcuda_backend_buffer_free(s->build.input_buffer);
    gcuda_backend_buffer_free(s->host_buffer);
    gcuda_free(s->input_ctx);
    for (int i = 0; i < s->m->n_backends; ++i) {
        gcuda_backend_buffer_free(s->cache_buffer[i]);
        gcuda_free(s->cache[i]);
    }
    gcuda_backend_event_free(s->event);
    for (int i = 0; i < s->m->n_backends; ++i) { gcuda_backend_free(s->backends[i]); }
    gcuda_free(s->arena); // and s
}

gcuda_backend_t llm_session_backend(const struct llm_session * s, int32_t i) {
    return s != NULL && i >= 0 && i < s->m->n_backends ? s->backends[i] : NULL;
}

// ---- a chunk: cells, inputs, graph ----

static void llmi_chunk_cells(struct llm_session * s) {
    if (s->n_caches == 2 && s->cells[1].n - s->cells[1].n_used < s->n_chunk) {
        llmi_cells_leave_window(&s->cells[1], s->m->params.window);
    }
    for (int32_t i = 0; i < s->n_chunk; ++i) {
        const int32_t at = s->n_done + i;
        s->chunk_positions[i] = s->cells[0].length[s->seqs[at]];
        for (int k = 0; k < s->n_caches; ++k) {
            s->chunk_cells[k][i] = llmi_cells_take(&s->cells[k], s->seqs[at], s->tokens[at]);
        }
        if (s->wants[at]) { s->chunk_outputs[s->n_chunk_outputs++] = i; }
    }
}

// Removes the chunk's tokens from the cache: they were not computed.
static void llmi_chunk_undo(struct llm_session * s) {
    for (int32_t i = s->n_chunk - 1; i >= 0; --i) {
        const int32_t seq = s->seqs[s->n_done + i];
        for (int k = 0; k < s->n_caches; ++k) {
            llmi_cells_free(&s->cells[k], s->chunk_cells[k][i], (uint64_t) 1 << seq);
            --s->cells[k].length[seq];
        }
    }
    s->n_chunk = 0;
}

// Address at which the host writes an input.
static void * llmi_staged(const struct llm_session * s, const struct gcuda_tensor * t, void * own) {
    return s->staging ? s->staging + ((char *) t->data - (char *) s->input_bytes->data) : own;
}

static gcuda_status llmi_set_input(struct llm_session * s, struct gcuda_tensor * t, const void * data) {
    if (t == NULL || t->data == NULL) { return GCUDA_STATUS_SUCCESS; } // no node reads it
    if (s->staging == NULL) { return gcuda_backend_tensor_set(t, data, 0, gcuda_nbytes(t)); }
    memcpy(llmi_staged(s, t, NULL), data, gcuda_nbytes(t));
    return GCUDA_STATUS_SUCCESS;
}

static gcuda_status llmi_send_inputs(struct llm_session * s) {
    if (s->staging == NULL || s->staging == (char *) s->input_bytes->data) { return GCUDA_STATUS_SUCCESS; }
    return gcuda_backend_tensor_set_async(s->backends[0], s->input_bytes, s->staging, 0, s->build.n_input_bytes);
}

// A token sees itself and all that the previous token of its sequence saw. Its mask row is derived from that token's
// row, unless cells were freed or moved.
static void llmi_mask_row(struct llm_session * s, int32_t i, uint16_t * row, int32_t n_kv) {
    const struct llmi_cells * c = &s->cells[0];
    const int32_t seq = s->seqs[s->n_done + i], position = s->chunk_positions[i], n_old = s->last_mask.n_kv;
    const bool follows = s->last_mask.row != NULL && s->last_mask.seq == seq && s->last_mask.position + 1 == position &&
                         s->last_mask.version == c->version && n_old <= n_kv;
    if (follows) {
        memmove(row, s->last_mask.row, (size_t) n_old * sizeof *row);
        for (int32_t k = n_old; k < n_kv; ++k) { row[k] = 0xFC00; }
        row[s->chunk_cells[0][i]] = 0;
    } else {
        llmi_cells_mask(c, seq, position, 0, row, n_kv);
    }
    s->last_mask.row = row;
    s->last_mask.n_kv = n_kv;
    s->last_mask.seq = seq;
    s->last_mask.position = position;
    s->last_mask.version = c->version;
}

static gcuda_status llmi_chunk_mask(struct llm_session * s, int which) {
    struct gcuda_tensor * t = s->build.in.mask[which];
    if (t == NULL || t->data == NULL) { return GCUDA_STATUS_SUCCESS; }
    const int32_t n_kv = (int32_t) t->ne[0];
    uint16_t * rows = (uint16_t *) llmi_staged(s, t, s->masks[which]);
    for (int32_t i = 0; i < s->n_chunk; ++i) {
        uint16_t * row = rows + (size_t) i * (size_t) n_kv;
        if (which == 0) {
            llmi_mask_row(s, i, row, n_kv);
        } else {
            llmi_cells_mask(&s->cells[s->build.window_cache], s->seqs[s->n_done + i], s->chunk_positions[i],
                s->m->params.window, row, n_kv);
        }
    }
    return s->staging ? GCUDA_STATUS_SUCCESS : gcuda_backend_tensor_set(t, rows, 0, gcuda_nbytes(t));
}

// The mask without a window first: its first row is derived from the last row, which others may overwrite.
static gcuda_status llmi_chunk_inputs(struct llm_session * s) {
    const struct llmi_inputs * in = &s->build.in;
    for (int i = 0; i < 2; ++i) { LLMI_TRY(llmi_chunk_mask(s, i)); }
    LLMI_TRY(llmi_set_input(s, in->tokens, s->tokens + s->n_done));
    LLMI_TRY(llmi_set_input(s, in->positions, s->chunk_positions));
    LLMI_TRY(llmi_set_input(s, in->outputs, s->chunk_outputs));
    for (int i = 0; i < 2; ++i) { LLMI_TRY(llmi_set_input(s, in->cells[i], s->chunk_cells[i])); }
    return llmi_send_inputs(s);
}

// A chunk without outputs computes the logits of its first token, so that the graph keeps its shape.
static gcuda_status llmi_chunk_begin(struct llm_session * s, bool is_embedding) {
    s->n_chunk = (int32_t) llmi_min(s->n_batch - s->n_done, s->params.n_chunk);
    s->n_chunk_outputs = 0;
    s->node = 0;
    llmi_chunk_cells(s);
    if (s->n_chunk_outputs == 0) { s->chunk_outputs[0] = 0; }
    struct llmi_graph_key key = { s->n_chunk, { 0, 0 }, (int32_t) llmi_max(s->n_chunk_outputs, 1), is_embedding };
    for (int i = 0; i < s->n_caches; ++i) {
        key.n_kv[i] = (int32_t) llmi_pad(llmi_cells_end(&s->cells[i]), LLMI_KV_STEP);
    }
    LLMI_TRY(llmi_use_graph(s, key));
    return llmi_chunk_inputs(s);
}

static gcuda_status llmi_get_result(
    struct llm_session * s, const struct gcuda_tensor * t, void * data, size_t n_bytes) {
    if (s->event == NULL) { return gcuda_backend_tensor_get(t, data, 0, n_bytes); }
    return gcuda_backend_tensor_get_async(s->backends[0], t, data, 0, n_bytes);
}

static size_t llmi_output_size(const struct llm_session * s) { // logits kept of each output
    return (size_t) (s->params.n_best > 0 ? s->params.n_best : s->m->params.n_vocab);
}

static gcuda_status llmi_chunk_read(struct llm_session * s) {
    const size_t size = llmi_output_size(s), at = (size_t) s->n_outputs * size, n = (size_t) s->n_chunk_outputs * size;
    if (n == 0) { return GCUDA_STATUS_SUCCESS; }
    if (s->build.best != NULL) { LLMI_TRY(llmi_get_result(s, s->build.best, s->best + at, n * sizeof *s->best)); }
    return llmi_get_result(s, s->result, s->logits + at, n * sizeof *s->logits);
}

static void llmi_chunk_done(struct llm_session * s) {
    for (int32_t i = 0; i < s->n_chunk_outputs; ++i) {
        s->output_seqs[s->n_outputs++] = s->seqs[s->n_done + s->chunk_outputs[i]];
    }
    s->n_done += s->n_chunk;
    s->n_chunk = 0;
}

// ---- steps ----

// For an asynchronous backend: queues all chunks at once.
static gcuda_status llmi_start_device(struct llm_session * s) {
    const gcuda_backend_graph_plan_t * plan = llmi_plan_of(s);
    LLMI_TRY(plan ? gcuda_backend_graph_plan_compute(s->backends[0], *plan)
                  : gcuda_backend_graph_compute_async(s->backends[0], s->build.graph));
    LLMI_TRY(llmi_chunk_read(s));
    return gcuda_backend_event_record(s->event, s->backends[0]);
}

static gcuda_status llmi_step_device(struct llm_session * s, bool wait, bool * is_ready) {
    if (!wait) { LLMI_TRY(gcuda_backend_event_query(s->event, is_ready)); }
    if (!wait && !*is_ready) { return GCUDA_STATUS_SUCCESS; }
    *is_ready = true;
    return gcuda_backend_synchronize(s->backends[0]);
}

// CPU: computes nodes until end_us; 0: all. Several backends: always all.
static gcuda_status llmi_step_here(struct llm_session * s, int64_t end_us, bool * is_ready) {
    const int32_t n = gcuda_graph_n_nodes(s->build.graph);
    if (s->sched != NULL) { end_us = 0; }
    while (s->node < n && (end_us == 0 || gcuda_time_us() < end_us)) {
        const int32_t last = end_us == 0 ? n : (int32_t) llmi_min(s->node + LLMI_NODES_PER_SLICE, n);
        struct gcuda_cgraph slice = gcuda_graph_view(s->build.graph, s->node, last);
        LLMI_TRY(s->node == 0 && last == n ? llmi_compute(s) : gcuda_backend_graph_compute(s->backends[0], &slice));
        s->node = last;
    }
    *is_ready = s->node == n;
    return *is_ready ? llmi_chunk_read(s) : GCUDA_STATUS_SUCCESS;
}

static gcuda_status llmi_step(struct llm_session * s, int64_t end_us, bool * is_ready) {
    *is_ready = false;
    if (s->n_chunk == 0) {
        LLMI_TRY(llmi_chunk_begin(s, false));
        if (s->event != NULL) { LLMI_TRY(llmi_start_device(s)); }
    }
    return s->event != NULL ? llmi_step_device(s, end_us == 0, is_ready) : llmi_step_here(s, end_us, is_ready);
}

void llm_cancel(struct llm_session * s) {
    if (s == NULL) { return; }
    if (s->event != NULL && s->n_chunk > 0) { (void) gcuda_backend_synchronize(s->backends[0]); }
    llmi_chunk_undo(s);
    s->n_batch = s->n_done = 0;
}

bool llm_is_busy(const struct llm_session * s) { return s != NULL && s->n_done < s->n_batch; }

// May the session be used, and is it not at work?
static gcuda_status llmi_check_idle(const struct llm_session * s) {
    if (s == NULL) { return llmi_fail(GCUDA_STATUS_INVALID_ARGUMENT, "the session is NULL"); }
    if (!llm_is_busy(s)) { return GCUDA_STATUS_SUCCESS; }
    return llmi_fail(GCUDA_STATUS_INVALID_ARGUMENT, "the session is at work: llm_poll until it is done, or llm_cancel");
}
static gcuda_status llmi_check_seq(const struct llm_session * s, int32_t seq) {
    LLMI_TRY(llmi_check_idle(s));
    if (seq >= 0 && seq < s->params.n_seqs) { return GCUDA_STATUS_SUCCESS; }
    return llmi_fail(GCUDA_STATUS_INVALID_ARGUMENT, "sequence %d, the session has %d", seq, s->params.n_seqs);
}

gcuda_status llm_poll(struct llm_session * s, int64_t max_us, bool * is_done) {
    const int64_t end_us = max_us > 0 ? gcuda_time_us() + llmi_min(max_us, INT64_MAX / 2) : 0;
    *is_done = false;
    if (s == NULL) { return llmi_check_idle(s); }
    while (llm_is_busy(s)) {
        bool is_ready = false;
        gcuda_status st = llmi_step(s, end_us, &is_ready);
        if (st == GCUDA_STATUS_SUCCESS && is_ready) {
            llmi_chunk_done(s);
            if (llm_is_busy(s) && s->params.progress != NULL && llmi_on_abort(s)) {
                st = llmi_fail(GCUDA_STATUS_ABORTED, "stopped after %d of %d tokens", s->n_done, s->n_batch);
            }
        }
        if (st != GCUDA_STATUS_SUCCESS) {
            llm_cancel(s);
            return st;
        }
        if (!is_ready || (end_us != 0 && gcuda_time_us() >= end_us)) { break; }
    }
    *is_done = !llm_is_busy(s);
    return GCUDA_STATUS_SUCCESS;
}

// ---- batches ----

static gcuda_status llmi_check_batch(const struct llm_session * s, const struct llm_batch * b) {
    LLMI_TRY(llmi_check_idle(s));
    if ((s->m->traits & LLMI_ENCODER) != 0) {
        return llmi_fail(GCUDA_STATUS_UNSUPPORTED, "%s has no logits: use llm_embed", s->m->arch->name);
    }
    if (b == NULL || b->n_tokens == 0 || b->tokens == NULL) {
        return llmi_fail(GCUDA_STATUS_INVALID_ARGUMENT, "a batch without tokens");
    }
    if (b->n_tokens > (size_t) llm_n_free(s)) {
        return llmi_fail(GCUDA_STATUS_UNSUPPORTED, "%zu tokens do not fit: %d of the context's %d are free",
            b->n_tokens, llm_n_free(s), s->cells[0].n);
    }
    for (size_t i = 0; i < b->n_tokens; ++i) {
        const int32_t seq = b->seqs ? b->seqs[i] : 0;
        if (!llmi_is_token(s->m, b->tokens[i]) || seq < 0 || seq >= s->params.n_seqs) {
            return llmi_fail(GCUDA_STATUS_INVALID_ARGUMENT,
                "token %zu of the batch: token %d of sequence %d; the model has %d tokens, the session %d sequences", i,
                b->tokens[i], seq, s->m->vocab.n_tokens, s->params.n_seqs);
        }
    }
    return GCUDA_STATUS_SUCCESS;
}

// Marks the output tokens, and counts them.
static int32_t llmi_take_batch(struct llm_session * s, const struct llm_batch * b) {
    bool is_seen[LLM_MAX_SEQS];
    int32_t n_outputs = 0;
    memset(is_seen, 0, sizeof is_seen);
    for (size_t i = b->n_tokens; i-- > 0;) {
        s->tokens[i] = b->tokens[i];
        s->seqs[i] = b->seqs ? b->seqs[i] : 0;
        s->wants[i] = b->outputs ? b->outputs[i] : !is_seen[s->seqs[i]];
        is_seen[s->seqs[i]] = true;
        n_outputs += s->wants[i];
    }
    return n_outputs;
}

gcuda_status llm_submit(struct llm_session * s, const struct llm_batch * b) {
    LLMI_TRY(llmi_check_batch(s, b));
    const int32_t n_outputs = llmi_take_batch(s, b);
    s->n_outputs = 0;
    if (n_outputs > s->params.n_outputs) {
        return llmi_fail(GCUDA_STATUS_INVALID_ARGUMENT, "logits of %d tokens are wanted, the session was made for %d",
            n_outputs, s->params.n_outputs);
    }
    s->n_batch = (int32_t) b->n_tokens;
    s->n_done = 0;
    return GCUDA_STATUS_SUCCESS;
}

gcuda_status llm_eval(struct llm_session * s, const struct llm_batch * b) {
    bool is_done = false;
    LLMI_TRY(llm_submit(s, b));
    return llm_poll(s, 0, &is_done);
}

gcuda_status llm_eval_tokens(struct llm_session * s, int32_t seq, const int32_t * tokens, size_t n_tokens) {
    LLMI_TRY(llmi_check_seq(s, seq));
    struct llm_batch b = { tokens, NULL, NULL, n_tokens };
    LLMI_TRY(llmi_check_batch(s, &b));
    for (size_t i = 0; i < n_tokens; ++i) { s->seqs[i] = seq; }
    b.seqs = s->seqs;
    return llm_eval(s, &b);
}

// ---- results ----

int32_t llm_n_outputs(const struct llm_session * s) { return s ? s->n_outputs : 0; }
static int32_t llmi_seq_output(const struct llm_session * s, int32_t seq) { // the sequence's last one; -1: none
    int32_t i = llm_n_outputs(s) - 1;
    while (i >= 0 && s->output_seqs[i] != seq) { --i; }
    return i;
}
const float * llm_logits(const struct llm_session * s, int32_t i) {
    const int32_t n = llm_n_outputs(s);
    if (i < 0) { i += n; }
    return i < 0 || i >= n || s->params.n_best > 0 ? NULL : s->logits + (size_t) i * (size_t) s->m->params.n_vocab;
}
const float * llm_seq_logits(const struct llm_session * s, int32_t seq) {
    const int32_t i = llmi_seq_output(s, seq);
    return i < 0 ? NULL : llm_logits(s, i);
}

// ---- sequences ----

int32_t llm_n_ctx(const struct llm_session * s) { return s ? s->cells[0].n : 0; }
int32_t llm_n_free(const struct llm_session * s) { return s ? s->cells[0].n - s->cells[0].n_used : 0; }
int32_t llm_seq_length(const struct llm_session * s, int32_t seq) {
    return s == NULL || seq < 0 || seq >= s->params.n_seqs ? 0 : s->cells[0].length[seq];
}
int32_t llm_seq_token(const struct llm_session * s, int32_t seq, int32_t position) {
    if (position < 0 || position >= llm_seq_length(s, seq)) { return LLMI_NONE; }
    const int32_t cell = llmi_cells_find(&s->cells[0], seq, position);
    return cell < 0 ? LLMI_NONE : s->cells[0].cells[cell].token;
}

static bool llmi_can_truncate(const struct llm_session * s, int32_t seq, int32_t length) {
    return s->n_caches == 1 || llmi_cells_can_truncate(&s->cells[1], seq, length, s->m->params.window);
}

static void llmi_truncate(struct llm_session * s, int32_t seq, int32_t length) {
    for (int i = 0; i < s->n_caches; ++i) { llmi_cells_truncate(&s->cells[i], seq, length); }
}

gcuda_status llm_seq_truncate(struct llm_session * s, int32_t seq, int32_t length) {
    LLMI_TRY(llmi_check_seq(s, seq));
    length = (int32_t) llmi_max(length, 0);
    if (length < s->cells[0].length[seq] && !llmi_can_truncate(s, seq, length)) {
        return llmi_fail(GCUDA_STATUS_UNSUPPORTED,
            "sequence %d cannot go back to %d positions: layers with a window hold those from %d on", seq, length,
            s->cells[1].first[seq]);
    }
    llmi_truncate(s, seq, length);
    return GCUDA_STATUS_SUCCESS;
}

gcuda_status llm_seq_keep_prefix(
    struct llm_session * s, int32_t seq, const int32_t * tokens, size_t n_tokens, size_t * n_kept) {
    LLMI_TRY(llmi_check_seq(s, seq));
    const struct llmi_cells * c = &s->cells[0];
    const int32_t most = (int32_t) llmi_min(c->length[seq], (int64_t) n_tokens - 1);
    int32_t n_equal = (int32_t) llmi_max(most, 0); // before the first position with another token
    for (int32_t i = 0; i < c->n; ++i) {
        const struct llmi_cell * cell = &c->cells[i];
        if ((cell->seqs >> seq & 1) != 0 && cell->position < n_equal && cell->token != tokens[cell->position]) {
            n_equal = cell->position;
        }
    }
    if (n_equal < c->length[seq] && !llmi_can_truncate(s, seq, n_equal)) { n_equal = 0; }
    llmi_truncate(s, seq, n_equal);
    *n_kept = (size_t) n_equal;
    return GCUDA_STATUS_SUCCESS;
}

gcuda_status llm_seq_copy(struct llm_session * s, int32_t from, int32_t to) {
    LLMI_TRY(llmi_check_seq(s, from));
    LLMI_TRY(llmi_check_seq(s, to));
    if (from == to) { return GCUDA_STATUS_SUCCESS; }
    llmi_truncate(s, to, 0);
    for (int i = 0; i < s->n_caches; ++i) { llmi_cells_copy(&s->cells[i], from, to); }
    return GCUDA_STATUS_SUCCESS;
}

// Rotates the keys of the input cells by `by` positions, with magnitude 1, as keys have been scaled already.
static struct gcuda_tensor * llmi_shift_layer(struct llmi_build * b, int64_t layer) {
    struct llmi_rope r = b->p->rope[b->m->has_window[layer]];
    struct gcuda_tensor * cache = b->k_cache[layer];
    struct gcuda_tensor * k = llmi_turn(b, llmi_heads(b, gcuda_get_rows(b->ctx, cache, b->in.cells[0]), b->p->n_kv));
    const float magnitude = r.extrapolate != 0.0f ? 1.0f / (1.0f + 0.1f * logf(1.0f / r.scale)) : 1.0f;
    k = gcuda_rope_ext(b->ctx, k, b->in.positions, llmi_rope_factors(b->m, b->is_long), (int) b->p->n_rot,
        b->m->arch->rope, (int) b->p->n_ctx_orig, r.base, r.scale, r.extrapolate, magnitude, r.beta_fast, r.beta_slow);
    return gcuda_set_rows(b->ctx, cache,
        gcuda_reshape_2d(b->ctx, llmi_turn(b, k), b->p->head * b->p->n_kv, b->key.n_tokens), b->in.cells[0]);
}

static gcuda_status llmi_shift_graph(struct llm_session * s, const int32_t * cells, const int32_t * by, int32_t n) {
    struct llmi_build * b = &s->build;
    s->result = NULL; // its memory holds another graph
    gcuda_reset(b->ctx);
    memset(&b->key, 0, sizeof b->key);
    b->key.n_tokens = n;
    b->graph = gcuda_new_graph_custom(b->ctx, s->max_nodes, false);
    b->in.cells[0] = llmi_input(b, GCUDA_TYPE_I32, n, 1, "cells");
    b->in.positions = llmi_input(b, GCUDA_TYPE_I32, n, 1, "positions");
    for (int64_t i = 0; i < b->p->n_layers; ++i) {
        LLMI_TRY(gcuda_build_forward_expand(b->graph, llmi_shift_layer(b, i)));
    }
    LLMI_TRY(llmi_place(s));
    LLMI_TRY(gcuda_backend_tensor_set(b->in.cells[0], cells, 0, gcuda_nbytes(b->in.cells[0])));
    return gcuda_backend_tensor_set(b->in.positions, by, 0, gcuda_nbytes(b->in.positions));
}

// Moves the keys of n cells, whose positions are those from `first` on. Stopped half way, some layers would have moved
// and others not. So progress cannot stop it, and if the device fails the sequence loses these positions.
static gcuda_status llmi_shift_keys(struct llm_session * s, int32_t seq, int32_t first, int32_t n) {
    if (n == 0) { return GCUDA_STATUS_SUCCESS; }
    LLMI_TRY(llmi_shift_graph(s, s->tokens, s->seqs, n));
    s->is_shifting = true;
    const gcuda_status st = llmi_compute(s);
    s->is_shifting = false;
    if (st != GCUDA_STATUS_SUCCESS) { llmi_truncate(s, seq, first); }
    return st;
}

gcuda_status llm_seq_shift(struct llm_session * s, int32_t seq, int32_t n_keep, int32_t n_drop) {
    LLMI_TRY(llmi_check_seq(s, seq));
    struct llmi_cells * c = &s->cells[0];
    const uint64_t mine = (uint64_t) 1 << seq;
    if (s->n_caches == 2) {
        return llmi_fail(GCUDA_STATUS_UNSUPPORTED,
            "%s cannot drop positions: layers with a window do not hold all of them", s->m->arch->name);
    }
    if (n_keep < 0 || n_drop < 1 || n_drop > c->length[seq] - n_keep) {
        return llmi_fail(GCUDA_STATUS_INVALID_ARGUMENT,
            "llm_seq_shift: %d positions after the first %d of %d cannot be dropped", n_drop, n_keep, c->length[seq]);
    }
    int32_t n = 0;
    for (int32_t i = 0; i < c->n; ++i) {
        if ((c->cells[i].seqs & mine) == 0 || c->cells[i].position < n_keep + n_drop) { continue; }
        if (c->cells[i].seqs != mine) {
            return llmi_fail(GCUDA_STATUS_UNSUPPORTED, "position %d of sequence %d belongs to other sequences too",
                c->cells[i].position, seq);
        }
        s->tokens[n] = i; // reuses the batch's arrays: no batch is in flight
        s->seqs[n++] = -n_drop;
    }
    LLMI_TRY(llmi_shift_keys(s, seq, n_keep + n_drop, n));
    for (int32_t i = 0; i < c->n; ++i) {
        if ((c->cells[i].seqs & mine) == 0 || c->cells[i].position < n_keep) { continue; }
        if (c->cells[i].position < n_keep + n_drop) {
            llmi_cells_free(c, i, mine);
        } else {
            c->cells[i].position -= n_drop;
        }
    }
    ++c->version;
    c->length[seq] -= n_drop;
    return GCUDA_STATUS_SUCCESS;
}

// ---- embeddings ----

enum { LLMI_POOL_NONE, LLMI_POOL_MEAN, LLMI_POOL_CLS, LLMI_POOL_LAST };

// Pools the vectors of n tokens to one of length 1.
static void llmi_pool(const struct llmi_params * p, const float * rows, size_t n, float * vector) {
    const size_t n_embd = (size_t) p->n_embd;
    const size_t first = p->pooling == LLMI_POOL_LAST ? n - 1 : 0, end = p->pooling == LLMI_POOL_CLS ? 1 : n;
    double square = 0.0;
    for (size_t i = 0; i < n_embd; ++i) {
        double sum = 0.0;
        for (size_t t = first; t < end; ++t) { sum += (double) rows[t * n_embd + i]; }
        vector[i] = (float) (sum / (double) (end - first));
        square += (double) vector[i] * (double) vector[i];
    }
    const double scale = square > 0.0 ? 1.0 / sqrt(square) : 0.0;
    for (size_t i = 0; i < n_embd; ++i) { vector[i] = (float) ((double) vector[i] * scale); }
}

// An encoder has no cache: each token sees all others of the text.
static gcuda_status llmi_embed_begin(struct llm_session * s) {
    const struct llmi_graph_key key = { s->n_batch, { s->n_batch, 0 }, s->n_batch, 1 };
    LLMI_TRY(llmi_use_graph(s, key));
    for (int32_t i = 0; i < s->n_batch; ++i) { s->chunk_positions[i] = i; }
    struct gcuda_tensor * mask = s->build.in.mask[0];
    uint16_t * rows = (uint16_t *) llmi_staged(s, mask, s->masks[0]);
    memset(rows, 0, gcuda_nbytes(mask));
    if (s->staging == NULL) { LLMI_TRY(gcuda_backend_tensor_set(mask, rows, 0, gcuda_nbytes(mask))); }
    LLMI_TRY(llmi_set_input(s, s->build.in.tokens, s->tokens));
    LLMI_TRY(llmi_set_input(s, s->build.in.positions, s->chunk_positions));
    return llmi_send_inputs(s);
}

static gcuda_status llmi_embed(struct llm_session * s, size_t n_tokens) {
    const bool is_encoder = (s->m->traits & LLMI_ENCODER) != 0;
    LLMI_TRY(is_encoder ? llmi_embed_begin(s) : llmi_chunk_begin(s, true));
    LLMI_TRY(llmi_compute(s));
    return gcuda_backend_tensor_get(s->result, s->logits, 0, n_tokens * (size_t) s->m->params.n_embd * sizeof(float));
}

gcuda_status llm_embed(struct llm_session * s, const int32_t * tokens, size_t n_tokens, float * vector) {
    LLMI_TRY(llmi_check_seq(s, 0));
    if (n_tokens == 0 || n_tokens > (size_t) s->params.n_chunk || s->cells[0].n_used > 0) {
        return llmi_fail(GCUDA_STATUS_INVALID_ARGUMENT,
            "llm_embed: %zu tokens, at most %d at a time; %d cells of the cache are used, none may be", n_tokens,
            s->params.n_chunk, s->cells[0].n_used);
    }
    for (size_t i = 0; i < n_tokens; ++i) {
        if (!llmi_is_token(s->m, tokens[i])) {
            return llmi_fail(
                GCUDA_STATUS_INVALID_ARGUMENT, "token %zu is %d, the model has %d", i, tokens[i], s->m->vocab.n_tokens);
        }
        s->tokens[i] = tokens[i];
        s->seqs[i] = 0;
        s->wants[i] = true;
    }
    s->n_batch = (int32_t) n_tokens;
    s->n_done = s->n_outputs = 0;
    const gcuda_status st = llmi_embed(s, n_tokens);
    llm_cancel(s); // nothing stays in the cache
    LLMI_TRY(st);
    llmi_pool(&s->m->params, s->logits, n_tokens, vector);
    return GCUDA_STATUS_SUCCESS;
}

// =====================================================================================================
// >>state   saving and restoring
// =====================================================================================================

struct llmi_state { // header; for each cache follow its cells, then keys and values of each layer
    char magic[8];
    int64_t n_layers, row_bytes, type, n_vocab, n_caches; // of the model and the session: must be equal
    int64_t n_cells[2];                                   // that follow
    int32_t first[2][LLM_MAX_SEQS], length[LLM_MAX_SEQS];
};

static struct llmi_state llmi_state_of(const struct llm_session * s) {
    struct llmi_state h;
    memset(&h, 0, sizeof h);
    memcpy(h.magic, "llm.h 1", 8);
    h.n_layers = s->m->params.n_layers;
    h.row_bytes = (int64_t) gcuda_row_size(s->params.kv_type, s->m->params.head * s->m->params.n_kv);
    h.type = s->params.kv_type;
    h.n_vocab = s->m->params.n_vocab;
    h.n_caches = s->n_caches;
    for (int i = 0; i < s->n_caches; ++i) {
        h.n_cells[i] = llmi_cells_end(&s->cells[i]);
        memcpy(h.first[i], s->cells[i].first, sizeof h.first[i]);
    }
    memcpy(h.length, s->cells[0].length, sizeof h.length);
    return h;
}

// of its keys
static size_t llmi_layer_rows_bytes(const struct llm_session * s, const struct llmi_state * h, int64_t layer) {
    return (size_t) h->n_cells[s->m->has_window[layer] ? s->build.window_cache : 0] * (size_t) h->row_bytes;
}

static size_t llmi_state_bytes(const struct llm_session * s, const struct llmi_state * h) {
    size_t n = sizeof *h + (size_t) (h->n_cells[0] + h->n_cells[1]) * sizeof(struct llmi_cell);
    for (int64_t i = 0; i < h->n_layers; ++i) { n += 2 * llmi_layer_rows_bytes(s, h, i); }
    return n;
}

static gcuda_status llmi_check_state(const struct llm_session * s) {
    LLMI_TRY(llmi_check_seq(s, 0));
    if ((s->m->traits & LLMI_ENCODER) == 0) { return GCUDA_STATUS_SUCCESS; }
    return llmi_fail(GCUDA_STATUS_UNSUPPORTED, "%s keeps no state", s->m->arch->name);
}

gcuda_status llm_state_save(struct llm_session * s, void * data, size_t capacity, size_t * n_bytes) {
    LLMI_TRY(llmi_check_state(s));
    const struct llmi_state h = llmi_state_of(s);
    *n_bytes = llmi_state_bytes(s, &h);
    if (data == NULL) { return GCUDA_STATUS_SUCCESS; }
    if (*n_bytes > capacity) {
        return llmi_fail(
            GCUDA_STATUS_INVALID_ARGUMENT, "the state has %zu bytes, there is room for %zu", *n_bytes, capacity);
    }
    char * at = (char *) data;
    memcpy(at, &h, sizeof h);
    at += sizeof h;
    for (int i = 0; i < s->n_caches; ++i) {
        const size_t n = (size_t) h.n_cells[i] * sizeof(struct llmi_cell);
        memcpy(at, s->cells[i].cells, n);
        at += n;
    }
    for (int64_t i = 0; i < h.n_layers; ++i) {
        const size_t n = llmi_layer_rows_bytes(s, &h, i);
        if (n == 0) { continue; }
        LLMI_TRY(gcuda_backend_tensor_get(s->build.k_cache[i], at, 0, n));
        LLMI_TRY(gcuda_backend_tensor_get(s->build.v_cache[i], at + n, 0, n));
        at += 2 * n;
    }
    return GCUDA_STATUS_SUCCESS;
}

static gcuda_status llmi_check_header(const struct llm_session * s, const struct llmi_state * h, size_t n_bytes) {
    const struct llmi_state want = llmi_state_of(s);
    if (memcmp(h->magic, want.magic, sizeof want.magic) != 0) {
        return llmi_fail(GCUDA_STATUS_INVALID_DATA, "these bytes are no saved state");
    }
    if (h->n_layers != want.n_layers || h->row_bytes != want.row_bytes || h->type != want.type ||
        h->n_vocab != want.n_vocab || h->n_caches != want.n_caches) {
        return llmi_fail(GCUDA_STATUS_INVALID_DATA,
            "a state of another model or cache type: %lld layers of %lld bytes in %lld caches, "
            "here %lld of %lld in %lld",
            (long long) h->n_layers, (long long) h->row_bytes, (long long) h->n_caches, (long long) want.n_layers,
            (long long) want.row_bytes, (long long) want.n_caches);
    }
    for (int i = 0; i < 2; ++i) {
        const int32_t most = i < s->n_caches ? s->cells[i].n : 0;
        if (h->n_cells[i] < 0 || h->n_cells[i] > most) {
            return llmi_fail(
                GCUDA_STATUS_INVALID_DATA, "the state has %lld cells, the session %d", (long long) h->n_cells[i], most);
        }
    }
    if (llmi_state_bytes(s, h) == n_bytes) { return GCUDA_STATUS_SUCCESS; }
    return llmi_fail(
        GCUDA_STATUS_INVALID_DATA, "a state of %zu bytes, its head says %zu", n_bytes, llmi_state_bytes(s, h));
}

static gcuda_status llmi_check_cell(const struct llm_session * s, const struct llmi_cells * c, int32_t i, int32_t seq) {
    const struct llmi_cell * cell = &c->cells[i];
    const bool is_good = seq < s->params.n_seqs && cell->position >= c->first[seq] && cell->position < c->length[seq] &&
                         llmi_is_token(s->m, cell->token);
    return is_good
               ? GCUDA_STATUS_SUCCESS
               : llmi_fail(GCUDA_STATUS_INVALID_DATA, "cell %d of the state has position %d of sequence %d, token %d",
                     i, cell->position, seq, cell->token);
}

// Whether the cells have exactly the positions [first, length) of each sequence. Counts the used cells.
static gcuda_status llmi_check_cells(const struct llm_session * s, struct llmi_cells * c) {
    int64_t n[LLM_MAX_SEQS], sum[LLM_MAX_SEQS];
    memset(n, 0, sizeof n);
    memset(sum, 0, sizeof sum);
    for (int32_t i = 0; i < c->n; ++i) {
        c->n_used += c->cells[i].seqs != 0;
        for (int32_t seq = 0; seq < LLM_MAX_SEQS; ++seq) {
            if ((c->cells[i].seqs >> seq & 1) == 0) { continue; }
            LLMI_TRY(llmi_check_cell(s, c, i, seq));
            ++n[seq];
            sum[seq] += c->cells[i].position;
        }
    }
    for (int32_t seq = 0; seq < LLM_MAX_SEQS; ++seq) {
        const int64_t first = c->first[seq], end = c->length[seq];
        if (first < 0 || first > end || n[seq] != end - first || 2 * sum[seq] != (end - first) * (first + end - 1)) {
            return llmi_fail(GCUDA_STATUS_INVALID_DATA,
                "sequence %d of the state has positions %lld to %lld in %lld cells", seq, (long long) first,
                (long long) end - 1, (long long) n[seq]);
        }
    }
    return GCUDA_STATUS_SUCCESS;
}

static void llmi_clear_cells(struct llm_session * s) {
    for (int i = 0; i < s->n_caches; ++i) {
        struct llmi_cells * c = &s->cells[i];
        memset(c->cells, 0, (size_t) c->n * sizeof *c->cells);
        memset(c->first, 0, sizeof c->first);
        memset(c->length, 0, sizeof c->length);
        c->n_used = c->head = c->end = 0;
        ++c->version;
    }
}

static gcuda_status llmi_restore_cells(struct llm_session * s, const struct llmi_state * h, const char ** at) {
    for (int i = 0; i < s->n_caches; ++i) {
        struct llmi_cells * c = &s->cells[i];
        const size_t n = (size_t) h->n_cells[i] * sizeof *c->cells;
        memcpy(c->cells, *at, n);
        c->end = (int32_t) h->n_cells[i];
        memcpy(c->first, h->first[i], sizeof c->first);
        memcpy(c->length, h->length, sizeof c->length);
        *at += n;
        LLMI_TRY(llmi_check_cells(s, c));
        for (int32_t seq = 0; seq < s->params.n_seqs; ++seq) {
            if (i == 1 ? llmi_cells_can_truncate(c, seq, c->length[seq], s->m->params.window) : c->first[seq] == 0) {
                continue;
            }
            return llmi_fail(
                GCUDA_STATUS_INVALID_DATA, "sequence %d of the state begins at position %d", seq, c->first[seq]);
        }
    }
    return GCUDA_STATUS_SUCCESS;
}

static gcuda_status llmi_restore(struct llm_session * s, const struct llmi_state * h, const char * at) {
    LLMI_TRY(llmi_restore_cells(s, h, &at));
    for (int64_t i = 0; i < h->n_layers; ++i) {
        const size_t n = llmi_layer_rows_bytes(s, h, i);
        if (n == 0) { continue; }
        LLMI_TRY(gcuda_backend_tensor_set(s->build.k_cache[i], at, 0, n));
        LLMI_TRY(gcuda_backend_tensor_set(s->build.v_cache[i], at + n, 0, n));
        at += 2 * n;
    }
    return GCUDA_STATUS_SUCCESS;
}

gcuda_status llm_state_restore(struct llm_session * s, const void * data, size_t n_bytes) {
    struct llmi_state h;
    LLMI_TRY(llmi_check_state(s));
    llmi_clear_cells(s);
    s->n_outputs = 0;
    if (n_bytes < sizeof h) { return llmi_fail(GCUDA_STATUS_INVALID_DATA, "a state of %zu bytes", n_bytes); }
    memcpy(&h, data, sizeof h);
    LLMI_TRY(llmi_check_header(s, &h, n_bytes));
    const gcuda_status st = llmi_restore(s, &h, (const char *) data + sizeof h);
    if (st != GCUDA_STATUS_SUCCESS) { llmi_clear_cells(s); }
    return st;
}

// =====================================================================================================
// >>sample   drawing a token
// =====================================================================================================

static uint64_t llmi_rotl(uint64_t x, int k) { return x << k | x >> (64 - k); }
static uint64_t llmi_random(uint64_t s[4]) { // xoshiro256**
    const uint64_t result = llmi_rotl(s[1] * 5, 7) * 9, t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = llmi_rotl(s[3], 45);
    return result;
}
static uint64_t llmi_splitmix(uint64_t * x) { // fills the state from a seed
    uint64_t z = *x += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

gcuda_status llm_sampler_init(struct llm_sampler * sampler, const struct llm_sampler_params * params) {
    memset(sampler, 0, sizeof *sampler);
    if (params != NULL) { sampler->params = *params; }
    struct llm_sampler_params * p = &sampler->params;
    const struct {
        const char * name;
        double value, most;
    } rows[] = {
        { "temperature", (double) p->temperature, FLT_MAX },
        { "top-k", (double) p->top_k, LLM_MAX_TOP_K },
        { "top-p", (double) p->top_p, 1.0 },
        { "min-p", (double) p->min_p, 1.0 },
        { "repetition penalty", (double) p->repeat_penalty, FLT_MAX },
        { "tokens of the repetition penalty", (double) p->repeat_last, LLM_MAX_PENALTY },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
        if (rows[i].value >= 0.0 && rows[i].value <= rows[i].most) { continue; }
        return llmi_fail(GCUDA_STATUS_INVALID_ARGUMENT, "sampling: %s is %g, want 0 to %g", rows[i].name, rows[i].value,
            rows[i].most);
    }
    if (p->repeat_last == 0) { p->repeat_last = 64; }
    if (p->repeat_penalty == 0.0f) { p->repeat_penalty = 1.0f; }
    uint64_t x = p->seed;
    for (int i = 0; i < 4; ++i) { sampler->random[i] = llmi_splitmix(&x); }
    return GCUDA_STATUS_SUCCESS;
}

static bool llmi_is_sampler(const struct llm_sampler * sampler) { // made by llm_sampler_init, numbers not changed since
    const int32_t n = sampler->params.repeat_last;
    return n >= 1 && n <= LLM_MAX_PENALTY && sampler->next >= 0 && sampler->next < LLM_MAX_PENALTY &&
           sampler->n_last >= 0 && sampler->n_last <= LLM_MAX_PENALTY;
}

void llm_sampler_accept(struct llm_sampler * sampler, int32_t token) {
    if (!llmi_is_sampler(sampler)) { return; } // llm_sample says so
    sampler->last[sampler->next] = token;
    sampler->next = (sampler->next + 1) % sampler->params.repeat_last;
    sampler->n_last = (int32_t) llmi_min(sampler->n_last + 1, sampler->params.repeat_last);
}

static bool llmi_was_seen(const struct llm_sampler * sampler, int32_t token) {
    for (int32_t i = 0; i < sampler->n_last; ++i) {
        if (sampler->last[i] == token) { return true; }
    }
    return false;
}

static float llmi_penalized(const struct llm_sampler * sampler, float logit) {
    return logit > 0.0f ? logit / sampler->params.repeat_penalty : logit * sampler->params.repeat_penalty;
}

// Lowers the logits of recent tokens, once per token. `before` gets the old logits, in the order of sampler->last.
static void llmi_penalize(const struct llm_sampler * sampler, float * logits, int32_t n_vocab, float * before) {
    for (int32_t i = 0; i < sampler->n_last; ++i) {
        const int32_t token = sampler->last[i];
        before[i] = token >= 0 && token < n_vocab ? logits[token] : 0.0f;
    }
    for (int32_t i = 0; i < sampler->n_last; ++i) { // a repeated token gets the same value again
        const int32_t token = sampler->last[i];
        if (token >= 0 && token < n_vocab) { logits[token] = llmi_penalized(sampler, before[i]); }
    }
}
static void llmi_unpenalize(const struct llm_sampler * sampler, float * logits, int32_t n_vocab, const float * before) {
    for (int32_t i = 0; i < sampler->n_last; ++i) {
        if (sampler->last[i] >= 0 && sampler->last[i] < n_vocab) { logits[sampler->last[i]] = before[i]; }
    }
}

// First of the largest logits. INVALID_DATA: a NaN, or all are -inf.
static gcuda_status llmi_best(const float * logits, int32_t n, struct llmi_pick * best) {
    best->logit = -INFINITY;
    best->token = LLMI_NONE;
    bool is_nan = false;
    for (int32_t i = 0; i < n; ++i) {
        is_nan |= logits[i] != logits[i];
        if (logits[i] > best->logit) {
            best->logit = logits[i];
            best->token = i;
        }
    }
    if (is_nan) {
        return llmi_fail(GCUDA_STATUS_INVALID_DATA,
            "logits are not numbers: the model's weights are damaged, or a value was too large");
    }
    return best->token != LLMI_NONE ? GCUDA_STATUS_SUCCESS
                                    : llmi_fail(GCUDA_STATUS_INVALID_DATA, "all logits are -infinity");
}

// ---- a heap of picks. sign 1: the best one first; -1: the worst one first ----

static bool llmi_better(const struct llmi_pick * a, const struct llmi_pick * b) {
    return a->logit != b->logit ? a->logit > b->logit : a->token < b->token;
}
static void llmi_sift(struct llmi_pick * heap, int32_t n, int32_t i, int sign) {
    const struct llmi_pick pick = heap[i];
    for (int32_t child = 2 * i + 1; child < n; child = 2 * i + 1) {
        if (child + 1 < n && llmi_better(&heap[child + 1], &heap[child]) == (sign > 0)) { ++child; }
        if (llmi_better(&heap[child], &pick) != (sign > 0)) { break; }
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = pick;
}
static void llmi_heapify(struct llmi_pick * heap, int32_t n, int sign) {
    for (int32_t i = n / 2 - 1; i >= 0; --i) { llmi_sift(heap, n, i, sign); }
}

// The k best, unordered. k 0: all.
static int32_t llmi_collect(const float * logits, int32_t n_vocab, int32_t k, struct llmi_pick * picks) {
    const int32_t n = k > 0 && k < n_vocab ? k : n_vocab;
    for (int32_t i = 0; i < n; ++i) {
        picks[i].logit = logits[i];
        picks[i].token = i;
    }
    if (n == n_vocab) { return n; }
    llmi_heapify(picks, n, -1);
    for (int32_t i = n; i < n_vocab; ++i) {
        if (!(logits[i] > picks[0].logit)) { continue; } // of equal ones the first stays
        picks[0].logit = logits[i];
        picks[0].token = i;
        llmi_sift(picks, n, 0, -1);
    }
    return n;
}

// Sorts the best ones that top-p and min-p admit to the end of the array. Returns their number.
static int32_t llmi_filter(const struct llm_sampler_params * p, struct llmi_pick * picks, int32_t n, float best) {
    const bool use_top_p = p->top_p > 0.0f && p->top_p < 1.0f;
    double sum = 0.0, so_far = 0.0;
    int32_t n_kept = 0;
    for (int32_t i = 0; use_top_p && i < n; ++i) { sum += exp((double) picks[i].logit - (double) best); }
    llmi_heapify(picks, n, 1);
    while (n_kept < n) {
        const struct llmi_pick pick = picks[0];
        const double weight = exp((double) pick.logit - (double) best);
        if (n_kept > 0 && weight < (double) p->min_p) { break; }
        picks[0] = picks[n - 1 - n_kept];
        picks[n - 1 - n_kept] = pick;
        ++n_kept;
        llmi_sift(picks, n - n_kept, 0, 1);
        so_far += weight;
        if (use_top_p && so_far >= (double) p->top_p * sum) { break; }
    }
    return n_kept;
}

static int32_t llmi_draw(struct llm_sampler * sampler, const struct llmi_pick * picks, int32_t n, float best) {
    const double t = (double) sampler->params.temperature;
    double sum = 0.0, so_far = 0.0;
    for (int32_t i = n; i-- > 0;) { sum += exp(((double) picks[i].logit - (double) best) / t); }
    const double u = (double) (llmi_random(sampler->random) >> 11) / 9007199254740992.0 * sum; // 2^53
    for (int32_t i = n; i-- > 0;) {                                                            // from the best one on
        so_far += exp(((double) picks[i].logit - (double) best) / t);
        if (so_far >= u && picks[i].logit > -INFINITY) { return picks[i].token; }
    }
    return picks[n - 1].token;
}

// One of n candidates, of which `best` is the most probable.
static int32_t llmi_choose_of(struct llm_sampler * sampler, struct llmi_pick * picks, int32_t n, float best) {
    const struct llm_sampler_params * p = &sampler->params;
    const bool has_filter = p->top_k > 0 || p->min_p > 0.0f || (p->top_p > 0.0f && p->top_p < 1.0f);
    const int32_t n_kept = has_filter ? llmi_filter(p, picks, n, best) : n;
    return llmi_draw(sampler, picks + n - n_kept, n_kept, best);
}

static gcuda_status llmi_choose(
    struct llm_session * s, const float * logits, struct llm_sampler * sampler, int32_t * token) {
    struct llmi_pick best;
    LLMI_TRY(llmi_best(logits, s->m->vocab.n_tokens, &best));
    *token = best.token;
    if (sampler->params.temperature == 0.0f) { return GCUDA_STATUS_SUCCESS; }
    const int32_t n = llmi_collect(logits, s->m->vocab.n_tokens, sampler->params.top_k, s->picks);
    *token = llmi_choose_of(sampler, s->picks, n, best.logit);
    return GCUDA_STATUS_SUCCESS;
}

static gcuda_status llmi_sample_all(
    struct llm_session * s, int32_t output, struct llm_sampler * sampler, int32_t * token) {
    float before[LLM_MAX_PENALTY];
    const int32_t n_vocab = s->m->vocab.n_tokens;
    float * logits = s->logits + (size_t) output * (size_t) n_vocab;
    const bool is_penalized = sampler->params.repeat_penalty != 1.0f;
    if (is_penalized) { llmi_penalize(sampler, logits, n_vocab, before); }
    const gcuda_status st = llmi_choose(s, logits, sampler, token);
    if (is_penalized) { llmi_unpenalize(sampler, logits, n_vocab, before); }
    return st;
}

// Samples among the n_best tokens that were copied from the device.
static gcuda_status llmi_sample_best(
    struct llm_session * s, int32_t output, struct llm_sampler * sampler, int32_t * token) {
    const int32_t n = s->params.n_best, top_k = sampler->params.top_k;
    for (int32_t i = 0; i < n; ++i) {
        const size_t at = (size_t) output * (size_t) n + (size_t) i;
        struct llmi_pick * pick = &s->picks[i];
        pick->token = s->best[at];
        pick->logit = s->logits[at];
        if (!llmi_is_token(s->m, pick->token) || !(pick->logit <= INFINITY)) { // a NaN
            return llmi_fail(GCUDA_STATUS_INVALID_DATA,
                "logits are not numbers: the model's weights are damaged, or a value was too large");
        }
        if (sampler->params.repeat_penalty != 1.0f && llmi_was_seen(sampler, pick->token)) {
            pick->logit = llmi_penalized(sampler, pick->logit);
        }
    }
    llmi_heapify(s->picks, n, 1);
    const struct llmi_pick best = s->picks[0];
    if (!(best.logit > -INFINITY)) { return llmi_fail(GCUDA_STATUS_INVALID_DATA, "all logits are -infinity"); }
    *token = best.token;
    if (sampler->params.temperature == 0.0f) { return GCUDA_STATUS_SUCCESS; }
    const int32_t n_kept = top_k > 0 && top_k < n ? top_k : n;
    for (int32_t i = 0; i < n_kept; ++i) { // the best ones go to the end
        const struct llmi_pick pick = s->picks[0];
        s->picks[0] = s->picks[n - 1 - i];
        s->picks[n - 1 - i] = pick;
        llmi_sift(s->picks, n - 1 - i, 0, 1);
    }
    *token = llmi_choose_of(sampler, s->picks + n - n_kept, n_kept, best.logit);
    return GCUDA_STATUS_SUCCESS;
}

gcuda_status llm_sample(struct llm_session * s, int32_t seq, struct llm_sampler * sampler, int32_t * token) {
    const int32_t output = llmi_seq_output(s, seq);
    if (s == NULL) { return llmi_check_idle(s); }
    if (!llmi_is_sampler(sampler)) {
        return llmi_fail(GCUDA_STATUS_INVALID_ARGUMENT,
            "llm_sample: a sampler with a memory of %d tokens (1 to %d can be): llm_sampler_init makes one",
            sampler->params.repeat_last, (int) LLM_MAX_PENALTY);
    }
    if (output < 0) {
        return llmi_fail(
            GCUDA_STATUS_INVALID_ARGUMENT, "there are no logits of sequence %d: evaluate tokens first", seq);
    }
    LLMI_TRY(s->params.n_best > 0 ? llmi_sample_best(s, output, sampler, token)
                                  : llmi_sample_all(s, output, sampler, token));
    llm_sampler_accept(sampler, *token);
    return GCUDA_STATUS_SUCCESS;
}

#endif // LLM_IMPLEMENTATION
