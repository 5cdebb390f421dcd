/*
llm.h - language models from GGUF files, on gcuda.h                                                              MIT

Loads a model, turns text into tokens, computes logits of several sequences in one batch, draws the next token, saves and
restores what a session holds. Llama (1 to 3, SmolLM2, Mistral), Qwen2, Qwen3, Qwen3-MoE, Gemma 3, gpt-oss, Phi-3 and BERT;
a file of another architecture, or one that lacks a key or a tensor, is refused by name.

BUILD
    #define GCUDA_IMPLEMENTATION            // in exactly one C or C++ file
    #include "gcuda.h"
    #define LLM_IMPLEMENTATION
    #include "llm.h"

    cc -O2 my.c -lm -lpthread -ldl          // with CUDA: as gcuda.h says

QUICK START
    struct llm_model * model = NULL;
    struct llm_session * session = NULL;
    struct llm_sampler sampler;
    int32_t tokens[256], token;
    size_t n = 0, size;
    llm_sampler_init(&sampler, NULL);                                            // greedy
    gcuda_status st = llm_model_load("model.gguf", NULL, &model);
    if (st == GCUDA_STATUS_SUCCESS) { st = llm_session_new(model, NULL, &session); }
    if (st == GCUDA_STATUS_SUCCESS) { st = llm_tokenize(model, "Once upon a time", 16, LLM_ADD_SPECIAL, tokens, 256, &n); }
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
    A model is the file's weights on one device and its vocabulary. It does not change once it is loaded: any number of sessions
    may use it, on several threads. A session is a KV cache and the memory of one evaluation; one thread at a time. A sampler is
    a plain struct of the caller's. Free sessions before their model.

MEMORY
    Host memory comes from gcuda's allocator (gcuda_set_allocator). Warnings go to the log of llm_model_params. There is no global
    state. After a session's first evaluation, evaluating and sampling allocate nothing.

ERRORS
    A function that can fail returns a gcuda_status and leaves a message with names and numbers in gcuda_last_error().
    Nothing aborts, exits or prints. A session whose evaluation failed can be used again: it holds what it held, and the
    chunks that were complete (llm_seq_length says how much).

GAME LOOP
    llm_submit gives a session work, llm_poll does or asks for at most some microseconds of it, llm_logits reads the result:

        if (!llm_is_busy(session)) { llm_submit(session, &batch); }
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
    LLM_MAX_PENALTY = 1024, // tokens that a sampler can look back
    LLM_MAX_TOP_K = 1024
};

struct llm_model;
struct llm_session;

// ---- models ----

// Called while weights are loaded and while a prompt is evaluated, with the share that is done, 0 to 1. false: stop
// (GCUDA_STATUS_ABORTED).
typedef bool (*llm_progress)(void * user, float share);

struct llm_model_params {
    const char * backend; // "CPU", "CUDA0" ...; NULL: a GPU if one works, else the CPU
    llm_progress progress; // NULL: none
    void * progress_user;
    gcuda_log_callback log; // warnings about the file; NULL: none
    void * log_user;
};
// Reads a GGUF file. On the CPU weights stay in the mapped file. params NULL: zeros. *out is NULL on failure:
// IO, INVALID_DATA (a damaged file, a missing key or tensor, a wrong shape: the message names it), UNSUPPORTED (another
// architecture, tokenizer or tensor type), ALLOC_FAILED.
LLM_API gcuda_status llm_model_load(const char * path, const struct llm_model_params * params, struct llm_model ** out);
LLM_API void llm_model_free(struct llm_model * model); // NULL is allowed

struct llm_info {
    const char * arch;    // "llama"
    const char * name;    // general.name, or ""
    const char * backend; // where the weights are
    const char * template_name; // of chats: "chatml"; NULL: none that is known
    int32_t n_vocab, n_ctx_train, n_embd, n_layers, n_heads, n_heads_kv, head_size, n_experts, window;
    int64_t n_params;     // elements of all weights
    size_t n_bytes;       // of all weights
    bool is_encoder;      // BERT: llm_embed, no logits
};
LLM_API struct llm_info llm_model_info(const struct llm_model * model); // strings live as long as the model

// ---- tokens ----

enum llm_tokenize_flag {
    LLM_ADD_SPECIAL = 1,  // begin (and end) the text as the model wants it: bos, eos, [CLS] ... [SEP]
    LLM_PARSE_SPECIAL = 2 // text such as <|im_end|> becomes its control token. Not for text of strangers
};
// text has n_bytes bytes and need not be valid UTF-8. At most `capacity` tokens are written, *n_tokens is how many there are.
// More than fit: INVALID_ARGUMENT (ask with tokens NULL and capacity 0 first: then it is no error).
LLM_API gcuda_status llm_tokenize(const struct llm_model * model, const char * text, size_t n_bytes, int flags,
    int32_t * tokens, size_t capacity, size_t * n_tokens);
// The text of tokens, by the same rule; no terminator. with_special: control tokens are written too, as their names.
LLM_API gcuda_status llm_detokenize(const struct llm_model * model, const int32_t * tokens, size_t n_tokens,
    bool with_special, char * text, size_t capacity, size_t * n_bytes);
// Bytes that a token adds to the text, and how many; for a control token its name. "" for a number that is no token.
LLM_API const char * llm_token_piece(const struct llm_model * model, int32_t token, size_t * n_bytes);
LLM_API bool llm_token_is_end(const struct llm_model * model, int32_t token);     // the answer ends here
LLM_API bool llm_token_is_special(const struct llm_model * model, int32_t token); // control, unknown or unused: no text
LLM_API int32_t llm_token_bos(const struct llm_model * model);                    // -1: the model has none
// How many of the bytes can be shown: all but the unfinished UTF-8 character that they may end with.
LLM_API size_t llm_utf8_whole(const char * text, size_t n_bytes);

// ---- chats ----

struct llm_message {
    const char * role; // "system", "user" or "assistant"
    const char * content;
};
// The tokens of a chat in the model's template, which the file's tokenizer.chat_template is recognised by: UNSUPPORTED if it is
// none of those known (llm_info.template_name). What a message says is text, whatever it looks like: no control tokens in it.
// is_open: the assistant's next message begins at the end. Capacity and *n_tokens as for llm_tokenize.
LLM_API gcuda_status llm_chat_tokenize(const struct llm_model * model, const struct llm_message * messages, size_t n_messages,
    bool is_open, int32_t * tokens, size_t capacity, size_t * n_tokens);
// The same as text, without bos; no terminator.
LLM_API gcuda_status llm_chat_text(const struct llm_model * model, const struct llm_message * messages, size_t n_messages,
    bool is_open, char * text, size_t capacity, size_t * n_bytes);

// ---- sessions ----

struct llm_session_params {
    int32_t n_ctx;     // cells of the KV cache, shared by all sequences; 0: 4096, or what the model was trained for if that is less
    int32_t n_seqs;    // sequences, numbered from 0; 0: 1
    int32_t n_chunk;   // tokens computed at a time; 0: 256
    int32_t n_outputs; // tokens of a chunk whose logits can be kept; 0: n_seqs
    int32_t n_threads; // on the CPU; 0: gcuda's default
    enum gcuda_type kv_type; // GCUDA_TYPE_F16 (1), BF16, Q8_0, F32 ...: see kv_is_set
    bool kv_is_set;    // false: F16
    bool exact;        // products with unrounded activations (GCUDA_PREC_F32): slower, for comparisons
    llm_progress progress; // of prompts longer than a chunk, and asked about every 10 ms on the CPU; NULL: none
    void * progress_user;
};
LLM_API gcuda_status llm_session_new(
    const struct llm_model * model, const struct llm_session_params * params, struct llm_session ** out);
LLM_API void llm_session_free(struct llm_session * session); // NULL is allowed

struct llm_batch {
    const int32_t * tokens;
    const int32_t * seqs; // sequence of each token; NULL: all of sequence 0
    const bool * outputs; // whose logits are wanted; NULL: of the last token of each sequence
    size_t n_tokens;
};
// Appends the tokens to their sequences and computes. In chunks; one that fails leaves the chunks before it. INVALID_ARGUMENT:
// a token or sequence out of range, more outputs than n_outputs. UNSUPPORTED: the cache is full (llm_seq_shift makes room).
LLM_API gcuda_status llm_eval(struct llm_session * session, const struct llm_batch * batch);
LLM_API gcuda_status llm_eval_tokens(struct llm_session * session, int32_t seq, const int32_t * tokens, size_t n_tokens);

// The same in steps. submit checks and copies the batch. poll works for about max_us microseconds (0: until the end) and says
// whether all is done. A GPU computes a chunk on its own: poll starts the next and looks whether it is ready. cancel drops what is not done.
LLM_API gcuda_status llm_submit(struct llm_session * session, const struct llm_batch * batch);
LLM_API gcuda_status llm_poll(struct llm_session * session, int64_t max_us, bool * is_done);
LLM_API void llm_cancel(struct llm_session * session);
LLM_API bool llm_is_busy(const struct llm_session * session);

// Logits [n_vocab] of the i-th output of the last batch; negative i counts from the end. NULL if there is none. Valid until the
// session evaluates again.
LLM_API const float * llm_logits(const struct llm_session * session, int32_t i);
// Of the last output of a sequence in the last batch.
LLM_API const float * llm_seq_logits(const struct llm_session * session, int32_t seq);
LLM_API int32_t llm_n_outputs(const struct llm_session * session);

// ---- sequences: what the KV cache holds ----

// Positions are 0, 1, 2 ... in every sequence. A cell may belong to several sequences (llm_seq_copy): a shared beginning.
LLM_API int32_t llm_seq_length(const struct llm_session * session, int32_t seq); // tokens; the next one's position
LLM_API int32_t llm_seq_token(const struct llm_session * session, int32_t seq, int32_t position); // -1: no such position
// How many of the tokens the sequence begins with, at most n_tokens - 1: what is after that is removed. Evaluate the others.
// A window of attention that has moved on cannot go back: then it is 0.
LLM_API gcuda_status llm_seq_keep_prefix(struct llm_session * session, int32_t seq, const int32_t * tokens, size_t n_tokens, size_t * n_kept);
LLM_API gcuda_status llm_seq_truncate(struct llm_session * session, int32_t seq, int32_t length); // drops positions from length on
LLM_API gcuda_status llm_seq_copy(struct llm_session * session, int32_t from, int32_t to);        // `to` is replaced
// Drops n_drop positions after the first n_keep, and moves those behind them forward. UNSUPPORTED where positions are shared
// with another sequence or layers have a window.
LLM_API gcuda_status llm_seq_shift(struct llm_session * session, int32_t seq, int32_t n_keep, int32_t n_drop);
LLM_API int32_t llm_n_ctx(const struct llm_session * session);
LLM_API int32_t llm_n_free(const struct llm_session * session); // cells without a token

// Everything that the cache holds, as bytes for the same model, cache type and machine byte order; n_ctx may differ. Capacity
// rule as for llm_tokenize. restore replaces all sequences; on failure the session is empty.
LLM_API gcuda_status llm_state_save(struct llm_session * session, void * data, size_t capacity, size_t * n_bytes);
LLM_API gcuda_status llm_state_restore(struct llm_session * session, const void * data, size_t n_bytes);

// ---- embeddings ----

// One vector [n_embd] for the text's tokens, pooled as the file says and of length 1; the session's sequences are not used, and those
// of a session of a model with a cache must be empty. At most n_chunk tokens.
LLM_API gcuda_status llm_embed(struct llm_session * session, const int32_t * tokens, size_t n_tokens, float * vector);

// ---- sampling ----

struct llm_sampler_params {
    float temperature; // 0: the most probable token; logits are divided by it, after the filters below
    int32_t top_k;     // only the k most probable; 0: off (at most LLM_MAX_TOP_K)
    float top_p;       // fewest tokens that have this probability together; 0 or 1: off
    float min_p;       // at least this share of the most probable one's; 0: off
    float repeat_penalty; // tokens seen lately: positive logits are divided by it, negative ones multiplied; 0 or 1: off
    int32_t repeat_last;  // how many tokens are "lately"; 0: 64
    uint64_t seed;     // the same seed and logits give the same tokens
};
struct llm_sampler {
    struct llm_sampler_params params;
    uint64_t random[4];
    int32_t last[LLM_MAX_PENALTY]; // ring of accepted tokens
    int32_t n_last, next;
};
// params NULL: zeros, which is greedy. Takes no memory. INVALID_ARGUMENT: NaN, a negative number, more than the maxima.
LLM_API gcuda_status llm_sampler_init(struct llm_sampler * sampler, const struct llm_sampler_params * params);
LLM_API void llm_sampler_accept(struct llm_sampler * sampler, int32_t token); // for the penalty; llm_sample does it too
// Draws from the last logits of the sequence. INVALID_DATA: logits are NaN, or all are -inf.
LLM_API gcuda_status llm_sample(struct llm_session * session, int32_t seq, struct llm_sampler * sampler, int32_t * token);

#ifdef __cplusplus
}
#endif
#endif // LLM_H

#if defined(LLM_IMPLEMENTATION) && !defined(LLM_IMPLEMENTATION_DONE)
#define LLM_IMPLEMENTATION_DONE

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

// =====================================================================================================
// >>base   errors, arenas, growing arrays
// =====================================================================================================

#define LLMI_TRY(call)                                                         \
    do {                                                                       \
        const gcuda_status try_status = (call);                                \
        if (try_status != GCUDA_STATUS_SUCCESS) { return try_status; }         \
    } while (0)

#if defined(__GNUC__)
#define LLMI_PRINTF(a, b) __attribute__((format(printf, a, b)))
#else
#define LLMI_PRINTF(a, b)
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

// Memory that ends with its arena: n zeroed elements. NULL and the last error set on failure. n 0 is one element.
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

// Where functions with a capacity write: what does not fit is counted and left out.
struct llmi_out {
    void * data;
    size_t size, capacity, n; // of an element; elements that fit, that there are
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
    return llmi_fail(GCUDA_STATUS_INVALID_ARGUMENT, "%s: %zu wanted, there is room for %zu", what, out->n, out->capacity);
}
static struct llmi_out llmi_out_of(void * data, size_t size, size_t capacity) {
    const struct llmi_out out = { data, size, data ? capacity : 0, 0 };
    return out;
}

// =====================================================================================================
// >>unicode   UTF-8, classes of characters
// =====================================================================================================

enum llmi_char { // numbers of the table below
    LLMI_LU, LLMI_LL, LLMI_LT, LLMI_LM, LLMI_LO, // letters
    LLMI_MN, LLMI_MC,                            // marks: without width, others
    LLMI_N, LLMI_P, LLMI_S, LLMI_Z, LLMI_C,      // numbers, punctuation, symbols, separators, control and unassigned
    LLMI_ALTERNATING,                            // capital and small letters in turn
    LLMI_SPACE                                   // White_Space: beside the class, not in the table
};

// unicode-begin
// Unicode 14.0.0: 2690 runs (tests/tools/gen_unicode.py)
static const uint32_t llmi_char_runs[] = {
    523, 26, 56, 25, 104, 25, 72, 167, 40, 57, 40, 416, 56, 25, 24, 25, 417, 24, 25, 24, 25, 539, 26, 24, 89, 24, 41, 20, 24, 25, 27, 73,
    39, 25, 17, 40, 25, 23, 20, 24, 55, 24, 368, 25, 112, 385, 25, 129, 908, 17, 268, 17, 764, 108, 33, 32, 17, 16, 17, 32, 17, 48, 33, 64,
    17, 32, 17, 48, 49, 32, 17, 32, 17, 92, 76, 17, 16, 17, 32, 17, 48, 17, 16, 17, 32, 33, 20, 16, 49, 68, 16, 18, 17, 16, 18, 17, 16, 18,
    17, 268, 17, 300, 17, 16, 18, 17, 16, 17, 48, 17, 940, 97, 32, 17, 32, 33, 16, 17, 64, 17, 140, 1089, 20, 433, 291, 73, 195, 233, 83,
    121, 19, 25, 19, 281, 1797, 76, 19, 25, 16, 17, 43, 19, 49, 24, 16, 75, 41, 16, 24, 48, 27, 16, 27, 32, 17, 272, 27, 144, 561, 16, 33,
    48, 49, 396, 65, 16, 17, 25, 16, 17, 32, 33, 816, 769, 556, 25, 85, 38, 892, 236, 17, 1548, 27, 608, 43, 19, 104, 657, 40, 43, 57, 27,
    725, 24, 21, 24, 37, 24, 37, 24, 21, 139, 436, 75, 68, 40, 283, 57, 40, 25, 40, 41, 181, 24, 27, 56, 516, 19, 164, 341, 167, 72, 36, 21,
    1588, 24, 20, 117, 27, 25, 101, 35, 37, 25, 69, 36, 167, 52, 41, 20, 232, 43, 20, 21, 484, 437, 43, 1428, 181, 20, 235, 167, 532, 149,
    35, 25, 56, 19, 43, 21, 41, 356, 69, 19, 149, 19, 53, 19, 85, 43, 248, 27, 404, 53, 43, 24, 27, 180, 91, 388, 25, 100, 155, 133, 660,
    19, 389, 27, 517, 22, 868, 21, 22, 21, 20, 54, 133, 70, 21, 38, 20, 117, 164, 37, 40, 167, 24, 19, 244, 21, 38, 27, 132, 43, 36, 43,
    356, 27, 116, 27, 20, 59, 68, 43, 21, 20, 54, 69, 43, 38, 43, 38, 21, 20, 139, 22, 75, 36, 27, 52, 37, 43, 167, 36, 41, 103, 41, 20, 24,
    21, 43, 37, 22, 27, 100, 75, 36, 43, 356, 27, 116, 27, 36, 27, 36, 27, 36, 43, 21, 27, 54, 37, 75, 37, 43, 53, 59, 21, 123, 68, 27, 20,
    123, 167, 37, 52, 21, 24, 171, 37, 22, 27, 148, 27, 52, 27, 356, 27, 116, 27, 36, 27, 84, 43, 21, 20, 54, 85, 27, 37, 22, 27, 38, 21,
    43, 20, 251, 36, 37, 43, 167, 24, 25, 123, 20, 101, 27, 21, 38, 27, 132, 43, 36, 43, 356, 27, 116, 27, 36, 27, 84, 43, 21, 20, 22, 21,
    22, 69, 43, 38, 43, 38, 21, 123, 37, 22, 75, 36, 27, 52, 37, 43, 167, 25, 20, 103, 171, 21, 20, 27, 100, 59, 52, 27, 68, 59, 36, 27, 20,
    27, 36, 59, 36, 59, 52, 59, 196, 75, 38, 21, 38, 59, 54, 27, 54, 21, 43, 20, 107, 22, 235, 215, 137, 91, 21, 54, 21, 132, 27, 52, 27,
    372, 27, 260, 43, 21, 20, 53, 70, 27, 53, 27, 69, 123, 37, 27, 52, 43, 20, 43, 36, 37, 43, 167, 123, 24, 119, 25, 20, 21, 38, 24, 132,
    27, 52, 27, 372, 27, 164, 27, 84, 43, 21, 20, 22, 21, 86, 27, 21, 38, 27, 38, 37, 123, 38, 107, 36, 27, 36, 37, 43, 167, 27, 36, 219,
    37, 38, 148, 27, 52, 27, 660, 37, 20, 54, 69, 27, 54, 27, 54, 21, 20, 25, 75, 52, 22, 119, 52, 37, 43, 311, 25, 100, 27, 21, 38, 27,
    292, 59, 388, 27, 148, 27, 20, 43, 116, 59, 21, 75, 54, 53, 27, 21, 27, 134, 107, 167, 43, 38, 24, 203, 772, 21, 36, 117, 75, 25, 100,
    19, 133, 24, 167, 40, 603, 36, 27, 20, 27, 84, 27, 388, 27, 20, 27, 164, 21, 36, 149, 20, 43, 84, 27, 19, 27, 101, 43, 167, 43, 68, 523,
    20, 57, 248, 25, 24, 57, 37, 105, 327, 25, 21, 25, 21, 25, 21, 72, 38, 132, 27, 580, 75, 229, 22, 85, 24, 37, 84, 181, 27, 581, 27, 137,
    21, 105, 27, 41, 88, 73, 40, 603, 692, 38, 69, 22, 101, 22, 37, 38, 37, 20, 167, 104, 100, 38, 37, 68, 53, 20, 54, 36, 118, 52, 69, 212,
    21, 38, 37, 102, 21, 20, 22, 167, 54, 21, 41, 608, 27, 16, 91, 16, 43, 689, 24, 19, 49, 5268, 27, 68, 43, 116, 27, 20, 27, 68, 43, 660,
    27, 68, 43, 532, 27, 68, 43, 116, 27, 20, 27, 68, 43, 244, 27, 916, 27, 68, 43, 1076, 43, 53, 152, 327, 59, 260, 169, 107, 1376, 43, 97,
    43, 24, 9924, 25, 24, 276, 26, 420, 40, 59, 1204, 56, 55, 132, 123, 292, 53, 22, 155, 308, 37, 22, 40, 155, 292, 37, 203, 212, 27, 52,
    27, 37, 203, 836, 37, 22, 117, 134, 21, 38, 181, 56, 19, 56, 25, 20, 21, 43, 167, 107, 167, 107, 184, 53, 27, 21, 167, 107, 564, 19,
    852, 123, 84, 37, 548, 21, 20, 91, 1124, 171, 500, 27, 53, 70, 37, 54, 75, 38, 21, 102, 53, 75, 25, 59, 40, 167, 484, 43, 84, 187, 708,
    75, 420, 107, 183, 59, 553, 372, 37, 38, 21, 43, 40, 852, 22, 21, 22, 117, 27, 21, 22, 21, 38, 133, 102, 165, 43, 21, 167, 107, 167,
    107, 120, 19, 104, 43, 229, 22, 261, 795, 69, 22, 756, 21, 22, 85, 22, 21, 86, 21, 38, 132, 59, 167, 120, 169, 149, 153, 40, 27, 37, 22,
    484, 22, 69, 38, 37, 22, 53, 36, 167, 708, 21, 22, 37, 54, 21, 22, 53, 38, 139, 72, 580, 134, 133, 38, 37, 59, 88, 167, 59, 52, 167,
    484, 99, 40, 145, 123, 688, 43, 48, 136, 139, 53, 24, 213, 22, 117, 68, 21, 100, 21, 36, 22, 37, 20, 91, 705, 1011, 209, 19, 545, 595,
    1029, 2412, 129, 1580, 129, 128, 97, 43, 96, 43, 129, 128, 129, 128, 97, 43, 96, 43, 129, 27, 16, 27, 16, 27, 16, 27, 16, 129, 128, 225,
    43, 129, 130, 129, 130, 129, 130, 81, 27, 33, 64, 18, 25, 17, 57, 49, 27, 33, 64, 18, 57, 65, 43, 33, 64, 27, 57, 129, 80, 57, 43, 49,
    27, 33, 64, 18, 41, 27, 186, 91, 392, 42, 91, 26, 328, 25, 216, 25, 200, 26, 267, 23, 19, 43, 103, 57, 40, 19, 167, 57, 40, 27, 211, 59,
    537, 251, 213, 70, 21, 54, 197, 251, 41, 16, 73, 16, 41, 17, 48, 33, 48, 17, 25, 16, 57, 80, 105, 16, 25, 16, 25, 16, 25, 64, 25, 17,
    64, 17, 68, 17, 41, 33, 32, 89, 16, 65, 73, 17, 25, 823, 16, 17, 87, 41, 75, 6025, 72, 473, 40, 4041, 411, 185, 347, 967, 1257, 359,
    9865, 232, 487, 793, 40, 505, 168, 6457, 360, 1017, 72, 521, 40, 5993, 43, 521, 27, 1689, 768, 769, 16, 17, 48, 33, 124, 48, 17, 16, 33,
    16, 97, 35, 48, 17, 1580, 17, 105, 76, 53, 16, 17, 91, 72, 23, 40, 609, 27, 17, 91, 17, 43, 900, 123, 19, 24, 235, 21, 372, 155, 116,
    27, 116, 27, 116, 27, 116, 27, 116, 27, 116, 27, 116, 27, 116, 27, 517, 760, 19, 520, 41, 200, 555, 425, 27, 1433, 203, 3433, 427, 201,
    75, 26, 56, 25, 19, 20, 23, 168, 41, 200, 25, 151, 69, 38, 24, 83, 41, 55, 19, 20, 24, 41, 27, 1380, 43, 37, 41, 35, 20, 24, 1444, 24,
    51, 20, 91, 692, 27, 1508, 27, 41, 71, 169, 516, 585, 203, 260, 505, 27, 167, 489, 135, 25, 247, 521, 167, 633, 247, 5129, 105476, 1033,
    336212, 19, 18292, 59, 889, 155, 644, 99, 40, 4292, 19, 56, 260, 167, 36, 331, 748, 20, 21, 54, 24, 165, 24, 19, 460, 35, 37, 1124, 167,
    37, 104, 139, 377, 147, 41, 236, 33, 1004, 19, 129, 92, 172, 19, 41, 76, 20, 76, 33, 348, 64, 17, 80, 17, 252, 48, 17, 16, 17, 91, 16,
    17, 27, 17, 27, 17, 76, 395, 51, 16, 17, 20, 35, 17, 116, 21, 52, 21, 68, 21, 372, 38, 37, 22, 73, 21, 59, 103, 73, 107, 836, 72, 139,
    38, 804, 262, 37, 139, 40, 167, 107, 293, 100, 56, 20, 24, 36, 21, 167, 452, 133, 40, 372, 181, 38, 187, 24, 468, 59, 53, 22, 756, 21,
    38, 69, 38, 37, 54, 216, 27, 19, 167, 75, 40, 84, 21, 19, 148, 167, 84, 27, 660, 101, 38, 37, 38, 37, 155, 52, 21, 132, 21, 22, 43, 167,
    43, 72, 260, 19, 100, 57, 20, 22, 21, 22, 804, 21, 20, 53, 36, 37, 84, 37, 20, 21, 20, 395, 36, 19, 40, 180, 22, 37, 38, 40, 20, 35, 22,
    21, 171, 100, 43, 100, 43, 100, 155, 116, 27, 116, 27, 689, 25, 67, 145, 19, 41, 75, 1281, 564, 38, 21, 38, 21, 38, 24, 22, 21, 43, 167,
    107, 178756, 203, 372, 75, 788, 135243, 5860, 43, 1700, 619, 113, 203, 81, 91, 20, 21, 164, 25, 212, 27, 84, 27, 20, 27, 36, 27, 36, 27,
    1732, 281, 267, 5812, 40, 265, 1028, 43, 868, 123, 25, 523, 196, 73, 261, 168, 107, 261, 568, 27, 232, 25, 24, 57, 27, 24, 25, 40, 75,
    84, 27, 2164, 75, 56, 25, 104, 25, 72, 167, 40, 57, 40, 416, 56, 25, 24, 25, 417, 24, 25, 24, 25, 120, 164, 19, 724, 35, 500, 59, 100,
    43, 100, 43, 100, 43, 52, 59, 121, 27, 121, 219, 41, 43, 196, 27, 420, 27, 308, 27, 36, 27, 244, 43, 228, 555, 1972, 91, 56, 75, 727,
    59, 153, 919, 281, 39, 57, 27, 217, 59, 25, 763, 729, 21, 2091, 468, 59, 788, 251, 21, 439, 75, 516, 71, 155, 324, 23, 132, 23, 91, 612,
    85, 91, 484, 27, 24, 580, 75, 132, 24, 87, 683, 640, 641, 1252, 43, 167, 107, 576, 75, 577, 75, 644, 139, 836, 187, 24, 176, 27, 240,
    27, 112, 27, 32, 27, 177, 27, 241, 27, 113, 27, 33, 1083, 4980, 155, 356, 171, 132, 395, 99, 27, 675, 27, 147, 1115, 100, 43, 20, 27,
    708, 27, 36, 59, 20, 43, 372, 27, 24, 135, 372, 41, 119, 500, 139, 151, 779, 308, 27, 36, 91, 87, 356, 103, 59, 24, 420, 91, 24, 1035,
    900, 75, 39, 36, 263, 43, 743, 20, 53, 27, 37, 91, 69, 68, 27, 52, 27, 468, 43, 53, 75, 21, 151, 123, 152, 123, 468, 39, 24, 468, 55,
    523, 132, 25, 452, 37, 75, 87, 120, 155, 868, 59, 120, 356, 43, 135, 308, 91, 135, 292, 123, 72, 203, 119, 1291, 1172, 891, 816, 219,
    817, 123, 103, 580, 69, 139, 167, 4715, 503, 27, 676, 27, 37, 24, 43, 36, 1259, 468, 167, 20, 139, 356, 181, 71, 88, 363, 292, 69, 72,
    619, 340, 119, 331, 372, 155, 22, 21, 22, 852, 245, 120, 75, 487, 21, 36, 37, 20, 155, 53, 22, 724, 54, 69, 38, 37, 40, 27, 72, 21, 219,
    404, 123, 167, 107, 53, 580, 85, 22, 133, 27, 167, 72, 20, 38, 20, 139, 564, 21, 40, 20, 155, 37, 22, 772, 54, 149, 38, 68, 72, 69, 24,
    22, 21, 167, 20, 24, 20, 56, 27, 327, 187, 292, 27, 404, 54, 53, 38, 21, 22, 37, 104, 21, 1051, 116, 27, 20, 27, 68, 27, 244, 27, 164,
    24, 107, 756, 21, 54, 133, 91, 167, 107, 37, 38, 27, 132, 43, 36, 43, 356, 27, 116, 27, 36, 27, 84, 27, 37, 20, 38, 21, 70, 43, 38, 43,
    54, 43, 20, 107, 22, 91, 84, 38, 43, 117, 59, 85, 2235, 852, 54, 133, 38, 53, 22, 21, 68, 88, 167, 40, 27, 24, 21, 52, 491, 772, 54,
    101, 22, 21, 70, 37, 22, 37, 36, 24, 20, 139, 167, 2667, 756, 54, 69, 43, 70, 37, 22, 37, 376, 68, 37, 555, 772, 54, 133, 38, 21, 22,
    37, 56, 20, 187, 167, 107, 216, 315, 692, 21, 22, 21, 38, 101, 22, 21, 20, 24, 107, 167, 875, 436, 43, 53, 38, 69, 22, 85, 75, 199, 56,
    25, 116, 2971, 708, 54, 149, 22, 37, 24, 1611, 512, 513, 311, 203, 132, 43, 20, 43, 132, 27, 36, 27, 388, 102, 27, 38, 43, 37, 22, 21,
    20, 22, 20, 22, 21, 56, 155, 167, 1131, 132, 43, 628, 54, 69, 43, 37, 70, 21, 20, 24, 20, 22, 443, 20, 165, 644, 101, 22, 20, 69, 136,
    21, 139, 20, 101, 38, 53, 740, 213, 22, 37, 56, 20, 88, 219, 1172, 4219, 148, 27, 596, 22, 117, 27, 101, 22, 21, 20, 88, 171, 471, 59,
    40, 484, 43, 357, 27, 22, 117, 22, 37, 22, 37, 1179, 116, 27, 36, 27, 612, 101, 59, 21, 27, 37, 27, 117, 20, 21, 139, 167, 107, 100, 27,
    36, 27, 516, 86, 27, 37, 27, 38, 21, 22, 21, 20, 123, 167, 4971, 308, 37, 38, 40, 2939, 20, 251, 343, 473, 219, 24, 14756, 1643, 1783,
    27, 88, 187, 3140, 42187, 1556, 40, 219, 17140, 64795, 9332, 138139, 9108, 123, 500, 27, 167, 75, 40, 1268, 27, 167, 107, 484, 43, 85,
    24, 171, 772, 117, 88, 73, 67, 24, 25, 171, 167, 27, 119, 27, 340, 91, 308, 11019, 512, 513, 375, 72, 1627, 1204, 75, 21, 20, 886, 123,
    69, 211, 1035, 35, 24, 19, 21, 187, 38, 235, 98180, 139, 19812, 683, 148, 142971, 67, 27, 115, 27, 35, 27, 4660, 731, 52, 283, 68, 139,
    6340, 36939, 1716, 91, 212, 59, 148, 123, 164, 43, 25, 37, 24, 75275, 741, 43, 373, 155, 1865, 971, 3945, 171, 633, 43, 969, 38, 53, 57,
    102, 139, 133, 41, 117, 489, 69, 985, 347, 1065, 53, 25, 2475, 327, 203, 1401, 155, 407, 2171, 416, 417, 416, 113, 27, 289, 416, 417,
    16, 27, 32, 43, 16, 43, 32, 43, 64, 27, 128, 65, 27, 17, 27, 113, 27, 177, 416, 417, 32, 27, 64, 43, 128, 27, 112, 27, 417, 32, 27, 64,
    27, 80, 27, 16, 59, 112, 27, 417, 416, 417, 416, 417, 416, 417, 416, 417, 416, 417, 416, 449, 43, 400, 25, 401, 25, 97, 400, 25, 401,
    25, 97, 400, 25, 401, 25, 97, 400, 25, 401, 25, 97, 400, 25, 401, 25, 97, 16, 17, 43, 807, 8201, 885, 73, 805, 137, 21, 233, 21, 41, 88,
    251, 85, 27, 245, 17675, 161, 20, 321, 3611, 117, 27, 277, 43, 117, 27, 37, 27, 85, 3419, 724, 59, 117, 115, 43, 167, 75, 20, 25, 5131,
    484, 21, 283, 708, 69, 167, 91, 25, 19979, 116, 27, 68, 27, 36, 27, 244, 27, 3156, 43, 151, 117, 667, 544, 545, 117, 19, 75, 167, 75,
    40, 12571, 951, 25, 55, 25, 71, 1227, 727, 25, 247, 3115, 68, 27, 436, 27, 36, 27, 20, 43, 20, 27, 164, 27, 68, 27, 20, 27, 20, 107, 20,
    75, 20, 27, 20, 27, 20, 27, 52, 27, 36, 27, 20, 43, 20, 27, 20, 27, 20, 27, 20, 27, 20, 27, 36, 27, 20, 43, 68, 27, 116, 27, 68, 27, 68,
    27, 20, 27, 164, 27, 276, 91, 52, 27, 84, 27, 276, 843, 41, 4331, 713, 75, 1609, 203, 249, 43, 249, 27, 249, 27, 601, 171, 215, 2585,
    907, 473, 219, 713, 75, 153, 123, 41, 235, 105, 2475, 15753, 91, 265, 59, 217, 59, 1865, 203, 1433, 123, 201, 75, 25, 251, 201, 75, 905,
    139, 169, 107, 649, 139, 489, 43, 41, 1259, 5449, 203, 233, 43, 89, 59, 89, 59, 121, 155, 473, 59, 185, 91, 105, 171, 169, 107, 137,
    139, 121, 155, 2361, 27, 889, 603, 167, 16491, 683524, 523, 66452, 123, 3556, 43, 92196, 235, 119572, 49659, 8676, 24107, 79028,
    11459419, 3845, 3137803,
};
// unicode-end

struct llmi_unicode {
    uint32_t * first; // code point that each run begins with
    int n_runs;
    uint32_t ascii[128]; // llmi_char_bits of these
};

static bool llmi_is_space(uint32_t c) {
    if (c < 0x80) { return c == ' ' || (c >= 9 && c <= 13); }
    return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F
        || c == 0x205F || c == 0x3000;
}

static uint32_t llmi_char_class(const struct llmi_unicode * u, uint32_t c) {
    int low = 0, high = u->n_runs; // first[low] <= c < first[high]
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        if (u->first[middle] <= c) { low = middle; } else { high = middle; }
    }
    const uint32_t k = llmi_char_runs[low] % 16;
    return k == LLMI_ALTERNATING ? (c - u->first[low]) % 2 : k; // LLMI_LU is 0, LLMI_LL is 1
}

static uint32_t llmi_char_bits_of(const struct llmi_unicode * u, uint32_t c) {
    return 1u << llmi_char_class(u, c) | (llmi_is_space(c) ? 1u << LLMI_SPACE : 0);
}

static gcuda_status llmi_unicode_init(struct llmi_unicode * u, struct gcuda_context * arena) {
    uint32_t c = 0;
    u->n_runs = (int) (sizeof llmi_char_runs / sizeof *llmi_char_runs);
    LLMI_TRY(llmi_made(u->first = LLMI_NEW(arena, uint32_t, u->n_runs)));
    for (int i = 0; i < u->n_runs; ++i) {
        u->first[i] = c;
        c += llmi_char_runs[i] / 16;
    }
    for (c = 0; c < 128; ++c) { u->ascii[c] = llmi_char_bits_of(u, c); }
    return GCUDA_STATUS_SUCCESS;
}

static uint32_t llmi_char_bits(const struct llmi_unicode * u, uint32_t c) {
    return c < 128 ? u->ascii[c] : llmi_char_bits_of(u, c);
}

// Length that a UTF-8 character has by its first byte; 0: it is none.
static size_t llmi_utf8_want(unsigned char first) {
    if (first < 0x80) { return 1; }
    if (first < 0xC2) { return 0; }
    return first < 0xE0 ? 2 : first < 0xF0 ? 3 : first < 0xF5 ? 4 : 0;
}

// Whether the byte may be number i (from 1) of the character: no overlong forms, surrogates, or code points above 10FFFF.
static bool llmi_utf8_follows(unsigned char first, size_t i, unsigned char byte) {
    const unsigned char low = i != 1 ? 0x80 : first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
    const unsigned char high = i != 1 ? 0xBF : first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
    return byte >= low && byte <= high;
}

// The code point that text begins with and its length. A byte that begins no valid character is U+FFFD of length 1.
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
// The expressions are those that the models were trained with. What they need is compiled here: alternatives, the first that
// matches wins; in each, items that are a set of characters, repeated; (?!\S); and \c, a letter of ours for an English
// contraction in any case. Trying an alternative costs at most the length of the two runs that it begins with.

enum { LLMI_PRE_PASSES = 4, LLMI_PRE_ITEMS = 64, LLMI_PRE_ALTERNATIVES = 24 };

#define LLMI_GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)"
#define LLMI_LLAMA3(numbers) \
    "\\c|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" numbers "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define LLMI_UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LLMI_LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define LLMI_O200K \
    "[^\\r\\n\\p{L}\\p{N}]?" LLMI_UPPER "*" LLMI_LOWER "+\\c?|[^\\r\\n\\p{L}\\p{N}]?" LLMI_UPPER "+" LLMI_LOWER "*\\c?" \
    "|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

static const struct llmi_pre_row {
    const char * name; // tokenizer.ggml.pre
    bool add_bos;      // unless the file says
    bool whole;        // a piece that is a token is taken as it is (ignore_merges)
    const char * passes[LLMI_PRE_PASSES]; // each splits the pieces of the one before
} llmi_pre_rows[] = {
    { "gpt-2", false, false, { LLMI_GPT2, NULL, NULL, NULL } },
    { "smollm", false, false, { "\\p{N}", LLMI_GPT2, NULL, NULL } },
    { "llama-bpe", true, true, { LLMI_LLAMA3("\\p{N}{1,3}"), NULL, NULL, NULL } },
    { "llama3", true, true, { LLMI_LLAMA3("\\p{N}{1,3}"), NULL, NULL, NULL } },
    { "llama-v3", true, true, { LLMI_LLAMA3("\\p{N}{1,3}"), NULL, NULL, NULL } },
    { "dbrx", false, false, { LLMI_LLAMA3("\\p{N}{1,3}"), NULL, NULL, NULL } },
    { "smaug-bpe", false, false, { LLMI_LLAMA3("\\p{N}{1,3}"), NULL, NULL, NULL } },
    { "qwen2", false, false, { LLMI_LLAMA3("\\p{N}"), NULL, NULL, NULL } },
    { "gpt-4o", false, false, { LLMI_O200K, NULL, NULL, NULL } },
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
struct llmi_span { int first, n; };

struct llmi_pre {
    struct llmi_item items[LLMI_PRE_ITEMS];
    struct llmi_span alternatives[LLMI_PRE_ALTERNATIVES]; // of items
    struct llmi_span passes[LLMI_PRE_PASSES];             // of alternatives
    int n_items, n_alternatives, n_passes;
};

// ---- compiling: of the expressions above, no others; so nothing is checked ----

static uint32_t llmi_class_bits(const char * name, size_t n) { // of \p{name}
    static const struct { const char * name; uint32_t bits; } rows[] = {
        { "L", 31u }, { "Lu", 1u << LLMI_LU }, { "Ll", 1u << LLMI_LL }, { "Lt", 1u << LLMI_LT }, { "Lm", 1u << LLMI_LM },
        { "Lo", 1u << LLMI_LO }, { "M", 3u << LLMI_MN }, { "N", 1u << LLMI_N }, { "P", 1u << LLMI_P },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
        if (strlen(rows[i].name) == n && memcmp(rows[i].name, name, n) == 0) { return rows[i].bits; }
    }
    return 0;
}

static void llmi_set_add(struct llmi_set * set, char c) { set->ascii[(unsigned char) c / 32 & 3] |= 1u << (unsigned char) c % 32; }

static const char * llmi_compile_escape(const char * s, struct llmi_item * item) {
    struct llmi_set * set = &item->set;
    const char * end = s + 2;
    switch (s[1]) {
        case 's': set->bits |= 1u << LLMI_SPACE; break;
        case 'S': set->bits |= 1u << LLMI_SPACE; set->is_not = true; break;
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

// ---- matching: on an array of characters, whose end looks like the end of the text ----

struct llmi_chars { // of a text
    uint32_t * c, * bits; // code points, llmi_char_bits
    uint32_t * at;        // byte that each begins at; [n]: the end
    bool * is_first;      // of a piece
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
        while (k < n && at + 1 + k < end && t->c[at + 1 + k] < 128 && (t->c[at + 1 + k] | 0x20) == (uint32_t) after[i][k]) { ++k; }
        if (k == n) { return at + 1 + n; }
    }
    return at;
}

enum { LLMI_NO_MATCH = -1 };

// End of what the items match from `at` on; LLMI_NO_MATCH if they do not. Takes as much as it can, then goes back.
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

// Characters [first, end) are a piece; marks where the pieces that the pass makes of it begin.
static void llmi_split(const struct llmi_pre * p, const struct llmi_span * pass, const struct llmi_chars * t, size_t first, size_t end) {
    bool is_between = false; // characters that nothing matches are a piece together
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
enum llmi_token_type { // tokenizer.ggml.token_type
    LLMI_UNDEFINED, LLMI_NORMAL, LLMI_UNKNOWN, LLMI_CONTROL, LLMI_USER_DEFINED, LLMI_UNUSED, LLMI_BYTE
};
enum { LLMI_NONE = -1, LLMI_BYTE_CHARS = 0x144 }; // no token or symbol; characters that byte-level BPE writes bytes as

struct llmi_merge {
    int32_t left, right, result, rank; // symbols; left LLMI_NONE: a free slot
};

// Symbols are what merges work on: the tokens, then texts that occur in merges and are no token (most files have none).
struct llmi_vocab {
    enum llmi_vocab_kind kind;
    int32_t n_tokens, n_symbols;
    char * text, * piece;            // of all symbols; what tokens add to a text
    uint32_t * text_at, * piece_at;  // where each begins; one more than there are
    uint8_t * type;                  // enum llmi_token_type
    bool * is_end;
    float * score;                   // SPM
    int32_t * slots;                 // hash table from text to symbol
    uint32_t n_slots, n_merge_slots; // powers of two
    struct llmi_merge * merges;      // hash table from pair to merge
    uint16_t char_of_byte[256];      // BPE
    int16_t byte_of_char[LLMI_BYTE_CHARS];
    int32_t byte_symbol[256];
    uint64_t special_lengths[256][4]; // lengths of special tokens by their first byte, a bit for each
    int32_t bos, eos, unknown, separator, max_piece; // max_piece: bytes of the longest token
    bool add_bos, add_eos, add_separator, add_space, lowercase;
    const struct llmi_pre_row * pre_row;
    struct llmi_pre pre;
    struct llmi_unicode unicode;
};

static uint32_t llmi_hash(const char * text, size_t n) { // FNV-1a
    uint32_t h = 2166136261u;
    for (size_t i = 0; i < n; ++i) { h = (h ^ (unsigned char) text[i]) * 16777619u; }
    return h ^ h >> 15;
}
static uint32_t llmi_hash_pair(int32_t left, int32_t right) {
    const uint64_t h = ((uint64_t) (uint32_t) left << 32 | (uint32_t) right) * 0x9E3779B97F4A7C15u;
    return (uint32_t) (h >> 32);
}
static uint32_t llmi_slots_for(size_t n) { // at most half full
    uint32_t slots = 16;
    while (slots < 2 * n) { slots *= 2; }
    return slots;
}

static size_t llmi_symbol_size(const struct llmi_vocab * v, int32_t symbol) { return v->text_at[symbol + 1] - v->text_at[symbol]; }

// The slot of the text: it holds the text's symbol, or LLMI_NONE where it belongs.
static int32_t * llmi_slot(const struct llmi_vocab * v, const char * text, size_t n) {
    uint32_t i = llmi_hash(text, n) & (v->n_slots - 1);
    while (v->slots[i] != LLMI_NONE) {
        const int32_t symbol = v->slots[i];
        if (llmi_symbol_size(v, symbol) == n && memcmp(v->text + v->text_at[symbol], text, n) == 0) { break; }
        i = (i + 1) & (v->n_slots - 1);
    }
    return &v->slots[i];
}
static int32_t llmi_find(const struct llmi_vocab * v, const char * text, size_t n) { return *llmi_slot(v, text, n); }
static int32_t llmi_find_token(const struct llmi_vocab * v, const char * text, size_t n) {
    const int32_t symbol = llmi_find(v, text, n);
    return symbol < v->n_tokens ? symbol : LLMI_NONE;
}

static struct llmi_merge * llmi_merge_slot(const struct llmi_vocab * v, int32_t left, int32_t right) {
    uint32_t i = llmi_hash_pair(left, right) & (v->n_merge_slots - 1);
    while (v->merges[i].left != LLMI_NONE && (v->merges[i].left != left || v->merges[i].right != right)) {
        i = (i + 1) & (v->n_merge_slots - 1);
    }
    return &v->merges[i];
}

static bool llmi_is_special(const struct llmi_vocab * v, int32_t token) {
    return v->type[token] == LLMI_CONTROL || v->type[token] == LLMI_UNKNOWN || v->type[token] == LLMI_USER_DEFINED;
}

// ---- the 256 characters that byte-level BPE writes bytes as ----

static void llmi_byte_chars(struct llmi_vocab * v) {
    uint16_t next = 0x100; // for bytes that have no printable character of their own number
    for (int b = 0; b < 256; ++b) {
        const bool is_printable = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b != 0xAD);
        v->char_of_byte[b] = is_printable ? (uint16_t) b : next++;
        v->byte_of_char[v->char_of_byte[b]] = (int16_t) b;
    }
}

// Writes the characters of `text` as the bytes they stand for; others stay. Returns how many bytes.
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

// ---- pieces: what tokens add to a text ----

static const char llmi_blank[] = "\xE2\x96\x81"; // U+2581 stands for a blank in SentencePiece and WordPiece

// Value of a byte token's text, <0x0A>; -1 for another text.
static int llmi_byte_of_text(const char * text, size_t n) {
    if (n != 6 || memcmp(text, "<0x", 3) != 0 || text[5] != '>') { return -1; }
    int value = 0;
    for (int i = 3; i < 5; ++i) {
        const char * digits = "0123456789ABCDEFabcdef", * at = strchr(digits, text[i]);
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
        if (n > 255) { return llmi_fail(GCUDA_STATUS_UNSUPPORTED, "special token %d has %zu bytes, at most 255 are supported", i, n); }
        v->special_lengths[(unsigned char) v->text[v->text_at[i]]][n / 64] |= (uint64_t) 1 << n % 64;
    }
    return GCUDA_STATUS_SUCCESS;
}

static void llmi_set_end(struct llmi_vocab * v, int32_t token) {
    if (token >= 0 && token < v->n_tokens) { v->is_end[token] = true; }
}

// An answer ends at any of these, if they are control tokens, and where the file says.
static void llmi_find_ends(struct llmi_vocab * v) {
    static const char * const texts[] = {
        "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "<end_of_turn>", "<|endoftext|>",
        "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>", "<end_of_utterance>", "<eos>", "<|fim_pad|>",
        "<|repo_name|>", "<|file_sep|>",
    };
    const bool is_harmony = llmi_find_token(v, "<|return|>", 10) >= 0 && llmi_find_token(v, "<|call|>", 8) >= 0;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; ++i) {
        const int32_t token = llmi_find_token(v, texts[i], strlen(texts[i]));
        if (token < 0 || !llmi_is_special(v, token)) { continue; }
        v->is_end[token] = !(is_harmony && strcmp(texts[i], "<|end|>") == 0); // there it ends a message, not the answer
    }
    llmi_set_end(v, v->eos);
}

// ---- filling the tables ----

// Takes over a text as symbol `symbol`; the texts come in order. Equal ones are an error for tokens.
static gcuda_status llmi_add_text(struct llmi_vocab * v, int32_t symbol, const char * text, size_t n) {
    memcpy(v->text + v->text_at[symbol], text, n);
    v->text_at[symbol + 1] = v->text_at[symbol] + (uint32_t) n;
    int32_t * slot = llmi_slot(v, text, n);
    if (*slot != LLMI_NONE) {
        return llmi_fail(GCUDA_STATUS_INVALID_DATA, "tokens %d and %d have the same text '%.*s'", *slot, symbol, (int) llmi_min((int64_t) n, 64), text);
    }
    *slot = symbol;
    return GCUDA_STATUS_SUCCESS;
}

// A text of a merge: its symbol, made where there is none.
static int32_t llmi_intern(struct llmi_vocab * v, const char * text, size_t n) {
    const int32_t symbol = llmi_find(v, text, n);
    if (symbol != LLMI_NONE) { return symbol; }
    (void) llmi_add_text(v, v->n_symbols, text, n); // cannot be there twice
    return v->n_symbols++;
}

static gcuda_status llmi_add_merge(struct llmi_vocab * v, int32_t rank, const char * line, size_t n) {
    const char * blank = n < 3 ? NULL : (const char *) memchr(line + 1, ' ', n - 1);
    const size_t n_left = blank ? (size_t) (blank - line) : 0, n_right = blank ? n - n_left - 1 : 0;
    char both[512];
    if (n_right == 0 || n > sizeof both) {
        return llmi_fail(GCUDA_STATUS_INVALID_DATA, "tokenizer.ggml.merges: line %d is not two texts with a blank between", rank);
    }
    memcpy(both, line, n_left);
    memcpy(both + n_left, blank + 1, n_right);
    const int32_t left = llmi_intern(v, line, n_left), right = llmi_intern(v, blank + 1, n_right);
    struct llmi_merge * merge = llmi_merge_slot(v, left, right);
    if (merge->left != LLMI_NONE) { return GCUDA_STATUS_SUCCESS; } // the first rank counts
    merge->left = left;
    merge->right = right;
    merge->rank = rank;
    merge->result = llmi_intern(v, both, n - 1);
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

// ---- reading from the file: of a stranger's file no number, type or count is taken without a look ----

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
static gcuda_status llmi_string_array(const struct llmi_file * f, const char * key, bool is_required, int64_t * id, uint64_t * n) {
    *n = 0;
    *id = gcuda_gguf_find_key(f->g, key);
    if (*id < 0) {
        return is_required ? llmi_fail(GCUDA_STATUS_INVALID_DATA, "the key '%s' is missing", key) : GCUDA_STATUS_SUCCESS;
    }
    if (gcuda_gguf_get_arr_type(f->g, *id) != GCUDA_GGUF_TYPE_STRING) {
        return llmi_fail(GCUDA_STATUS_INVALID_DATA, "the key '%s' is no array of strings", key);
    }
    *n = gcuda_gguf_get_arr_n(f->g, *id);
    return GCUDA_STATUS_SUCCESS;
}

static uint64_t llmi_string_bytes(const struct llmi_file * f, int64_t id, uint64_t n) {
    uint64_t sum = 0;
    const char * text;
    for (uint64_t i = 0; i < n; ++i) {
        size_t size = 0;
        if (gcuda_gguf_get_arr_str(f->g, id, i, &text, &size) == GCUDA_STATUS_SUCCESS) { sum += size; }
    }
    return sum;
}

// 4-byte numbers, one for each token at least. *data NULL: there is no such key.
static gcuda_status llmi_token_array(const struct llmi_file * f, const char * key, enum gcuda_gguf_type type, int32_t n_tokens, const void ** data) {
    const int64_t id = gcuda_gguf_find_key(f->g, key);
    uint64_t n = 0;
    *data = NULL;
    if (id < 0) { return GCUDA_STATUS_SUCCESS; }
    LLMI_TRY(gcuda_gguf_get_arr_data(f->g, id, type, data, &n));
    if (n >= (uint64_t) n_tokens) { return GCUDA_STATUS_SUCCESS; }
    return llmi_fail(GCUDA_STATUS_INVALID_DATA, "the key '%s' has %llu elements for %d tokens", key, (unsigned long long) n, n_tokens);
}

static gcuda_status llmi_load_id(const struct llmi_file * f, const struct llmi_vocab * v, const char * key, int32_t * id) {
    int64_t value = *id;
    LLMI_TRY(gcuda_gguf_get_int(f->g, key, false, INT64_MIN, INT64_MAX, &value));
    if (value < 0 || value >= v->n_tokens) {
        if (value != *id) { llmi_warn(f, "%s is %lld, which is none of %d tokens: ignored", key, (long long) value, v->n_tokens); }
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
    if (v->kind != LLMI_WPM) { LLMI_TRY(gcuda_gguf_get_bool(f->g, "tokenizer.ggml.add_bos_token", false, &v->add_bos)); }
    LLMI_TRY(gcuda_gguf_get_bool(f->g, "tokenizer.ggml.add_eos_token", false, &v->add_eos));
    LLMI_TRY(gcuda_gguf_get_bool(f->g, "tokenizer.ggml.add_space_prefix", false, &v->add_space));
    v->lowercase = true;
    return gcuda_gguf_get_bool(f->g, "tokenizer.ggml.normalizer.lowercase", false, &v->lowercase);
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
    const char * name = NULL, * pre = NULL;
    LLMI_TRY(gcuda_gguf_get_str(f->g, "tokenizer.ggml.model", true, &name));
    LLMI_TRY(gcuda_gguf_get_str(f->g, "tokenizer.ggml.pre", false, &pre));
    int kind = 0;
    while (kind < 3 && strcmp(name, names[kind]) != 0) { ++kind; }
    if (kind == 3) {
        return llmi_fail(GCUDA_STATUS_UNSUPPORTED, "tokenizer.ggml.model is '%.64s'; supported are gpt2 (byte pairs), llama (SentencePiece) and bert (WordPiece)", name);
    }
    v->kind = (enum llmi_vocab_kind) kind;
    if (v->kind != LLMI_BPE) { return GCUDA_STATUS_SUCCESS; }
    if (pre == NULL) { llmi_warn(f, "the file has no tokenizer.ggml.pre: text may be split in another way than the model was trained with"); }
    for (size_t i = 0; i < sizeof llmi_pre_rows / sizeof *llmi_pre_rows; ++i) {
        if (strcmp(pre ? pre : "default", llmi_pre_rows[i].name) == 0) { v->pre_row = &llmi_pre_rows[i]; }
    }
    if (v->pre_row == NULL) { return llmi_fail(GCUDA_STATUS_UNSUPPORTED, "tokenizer.ggml.pre is '%.64s', which is none that is supported", pre); }
    llmi_pre_compile(&v->pre, v->pre_row);
    llmi_byte_chars(v);
    return GCUDA_STATUS_SUCCESS;
}

// Tables for n tokens and the texts of n_merges merges (each has three at most that are no token).
static gcuda_status llmi_vocab_alloc(struct llmi_vocab * v, struct gcuda_context * arena, uint64_t n, uint64_t n_merges, uint64_t n_bytes) {
    if (n < 1 || n > 1 << 24 || n_merges > 1 << 24 || n_bytes > UINT32_MAX / 2) {
        return llmi_fail(GCUDA_STATUS_INVALID_DATA, "a vocabulary of %llu tokens, %llu merges and %llu bytes; supported are 1 to %d, %d and %lu",
            (unsigned long long) n, (unsigned long long) n_merges, (unsigned long long) n_bytes, 1 << 24, 1 << 24, (unsigned long) UINT32_MAX / 2);
    }
    const size_t n_symbols = (size_t) (n + 3 * n_merges);
    v->n_tokens = v->n_symbols = (int32_t) n;
    v->n_slots = llmi_slots_for(n_symbols);
    v->n_merge_slots = llmi_slots_for((size_t) n_merges);
    LLMI_TRY(llmi_made(v->text = LLMI_NEW(arena, char, n_bytes)));
    LLMI_TRY(llmi_made(v->text_at = LLMI_NEW(arena, uint32_t, n_symbols + 1)));
    LLMI_TRY(llmi_made(v->slots = LLMI_NEW(arena, int32_t, v->n_slots)));
    LLMI_TRY(llmi_made(v->merges = LLMI_NEW(arena, struct llmi_merge, v->n_merge_slots)));
    LLMI_TRY(llmi_made(v->type = LLMI_NEW(arena, uint8_t, n)));
    LLMI_TRY(llmi_made(v->is_end = LLMI_NEW(arena, bool, n)));
    for (uint32_t i = 0; i < v->n_slots; ++i) { v->slots[i] = LLMI_NONE; }
    for (uint32_t i = 0; i < v->n_merge_slots; ++i) { v->merges[i].left = LLMI_NONE; }
    return GCUDA_STATUS_SUCCESS;
}

static gcuda_status llmi_load_types(const struct llmi_file * f, struct llmi_vocab * v) {
    const void * types = NULL, * scores = NULL;
    LLMI_TRY(llmi_token_array(f, "tokenizer.ggml.token_type", GCUDA_GGUF_TYPE_INT32, v->n_tokens, &types));
    for (int32_t i = 0; i < v->n_tokens; ++i) {
        const int32_t type = types ? ((const int32_t *) types)[i] : LLMI_NORMAL;
        v->type[i] = (uint8_t) (type < 0 || type > LLMI_BYTE ? LLMI_UNDEFINED : type);
    }
    LLMI_TRY(llmi_token_array(f, "tokenizer.ggml.scores", GCUDA_GGUF_TYPE_FLOAT32, v->n_tokens, &scores));
    for (int32_t i = 0; scores != NULL && v->score != NULL && i < v->n_tokens; ++i) { v->score[i] = ((const float *) scores)[i]; }
    return GCUDA_STATUS_SUCCESS;
}

static gcuda_status llmi_load_texts(const struct llmi_file * f, struct llmi_vocab * v, int64_t tokens, int64_t merges, uint64_t n_merges) {
    const char * text;
    size_t n;
    char empty[24];
    for (int32_t i = 0; i < v->n_tokens; ++i) {
        LLMI_TRY(gcuda_gguf_get_arr_str(f->g, tokens, (uint64_t) i, &text, &n));
        if (n == 0) {
            n = (size_t) snprintf(empty, sizeof empty, "[EMPTY_%d]", i);
            text = empty;
        }
        LLMI_TRY(llmi_add_text(v, i, text, n));
    }
    for (uint64_t i = 0; i < n_merges; ++i) {
        LLMI_TRY(gcuda_gguf_get_arr_str(f->g, merges, i, &text, &n));
        LLMI_TRY(llmi_add_merge(v, (int32_t) i, text, n));
    }
    return GCUDA_STATUS_SUCCESS;
}

static gcuda_status llmi_vocab_load(struct llmi_vocab * v, const struct llmi_file * f, struct gcuda_context * arena) {
    int64_t tokens, merges = -1;
    uint64_t n, n_merges = 0;
    LLMI_TRY(llmi_unicode_init(&v->unicode, arena));
    LLMI_TRY(llmi_load_kind(f, v));
    LLMI_TRY(llmi_string_array(f, "tokenizer.ggml.tokens", true, &tokens, &n));
    if (v->kind == LLMI_BPE) { LLMI_TRY(llmi_string_array(f, "tokenizer.ggml.merges", true, &merges, &n_merges)); }
    const uint64_t n_bytes = llmi_string_bytes(f, tokens, n) + 24 * n + 2 * llmi_string_bytes(f, merges, n_merges); // 24: [EMPTY_...]
    LLMI_TRY(llmi_vocab_alloc(v, arena, n, n_merges, n_bytes));
    if (v->kind == LLMI_SPM) { LLMI_TRY(llmi_made(v->score = LLMI_NEW(arena, float, n))); }
    LLMI_TRY(llmi_load_texts(f, v, tokens, merges, n_merges));
    LLMI_TRY(llmi_load_types(f, v));
    LLMI_TRY(llmi_load_ids(f, v));
    LLMI_TRY(llmi_load_ends(f, v));
    llmi_bind_bytes(v);
    LLMI_TRY(llmi_index_special(v));
    return llmi_make_pieces(v, arena);
}

// =====================================================================================================
// >>tokenize   text to tokens and back
// =====================================================================================================

struct llmi_range { size_t first, end; }; // bytes

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

// ---- merging: of two neighbours those first that the vocabulary joins first; of equal ones the left ----

struct llmi_node { // a symbol of the piece, in a list
    int32_t prev, next, symbol;
    uint32_t at, n; // its bytes; n 0: it was merged into the one before
};
struct llmi_candidate {
    double order; // rank; or minus the score
    int32_t left, symbol; // node; what the two become
    uint32_t n;   // bytes of both: another sum says that one of them has changed
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

// What two neighbours become; false: the vocabulary does not join them.
static bool llmi_joins(const struct llmi_merger * m, const struct llmi_node * left, const struct llmi_node * right, struct llmi_candidate * c) {
    if (m->v->kind == LLMI_BPE) {
        const struct llmi_merge * merge = llmi_merge_slot(m->v, left->symbol, right->symbol);
        c->symbol = merge->result;
        c->order = merge->rank;
        return merge->left != LLMI_NONE;
    }
    c->symbol = llmi_find_token(m->v, m->text + left->at, left->n + right->n);
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

// Room for pieces of up to n symbols: each merge takes one away and offers at most two.
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

// A symbol that is no token: its characters, those of them that are.
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

// The token that a piece is as a whole; LLMI_NONE if it is none.
static int32_t llmi_whole_piece(const struct llmi_vocab * v, const char * text, size_t n) {
    char mapped[512];
    size_t n_mapped = 0;
    if (!v->pre_row->whole || 2 * n > sizeof mapped) { return LLMI_NONE; }
    for (size_t i = 0; i < n; ++i) { n_mapped += llmi_utf8_put(v->char_of_byte[(unsigned char) text[i]], mapped + n_mapped); }
    return llmi_find_token(v, mapped, n_mapped);
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
    for (int32_t i = m->n_nodes > 0 ? 0 : LLMI_NONE; i >= 0; i = m->nodes[i].next) { llmi_emit_symbol(t, m->nodes[i].symbol); }
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
        c->bits[c->n] = llmi_char_bits(&t->v->unicode, c->c[c->n]);
        ++c->n;
    }
    c->at[c->n] = (uint32_t) n;
    return GCUDA_STATUS_SUCCESS;
}

// Length of the piece that begins with character `first`, in characters.
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
        llmi_merger_add(&m, llmi_find_token(t->v, blanked + i, length), (uint32_t) i, (uint32_t) length);
    }
    llmi_merge_all(&m);
    for (int32_t i = m.n_nodes > 0 ? 0 : LLMI_NONE; i >= 0; i = m.nodes[i].next) { llmi_spm_emit(t, blanked, &m.nodes[i]); }
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
static int32_t llmi_special_at(const struct llmi_tokenizer * t, const char * text, size_t n, size_t at, size_t * length) {
    const uint64_t * lengths = t->v->special_lengths[(unsigned char) text[at]];
    if ((lengths[0] | lengths[1] | lengths[2] | lengths[3]) == 0) { return LLMI_NONE; }
    for (size_t size = (size_t) llmi_min(255, (int64_t) (n - at)); size > 0; --size) {
        if ((lengths[size / 64] >> size % 64 & 1) == 0) { continue; }
        const int32_t token = llmi_find_token(t->v, text + at, size);
        if (token == LLMI_NONE || !llmi_is_special(t->v, token)) { continue; }
        if (t->v->type[token] != LLMI_USER_DEFINED && (!t->parse_special || !llmi_is_template(t, at, at + size))) { continue; }
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

static gcuda_status llmi_tokenize(const struct llmi_vocab * v, const char * text, size_t n, const struct llmi_range * plain,
    size_t n_plain, int flags, struct llmi_out * out) {
    if (n > INT32_MAX / 4) { return llmi_fail(GCUDA_STATUS_INVALID_ARGUMENT, "a text of %zu bytes; tokenize at most %d at a time", n, INT32_MAX / 4); }
    struct llmi_tokenizer t = { v, llmi_arena(0), plain, n_plain, (flags & LLM_PARSE_SPECIAL) != 0, out };
    LLMI_TRY(llmi_made(t.arena));
    if ((flags & LLM_ADD_SPECIAL) != 0 && v->add_bos) { llmi_emit(&t, v->bos); }
    const gcuda_status st = llmi_parts(&t, text, n);
    if ((flags & LLM_ADD_SPECIAL) != 0 && v->add_separator) { llmi_emit(&t, v->separator); }
    if ((flags & LLM_ADD_SPECIAL) != 0 && v->add_eos) { llmi_emit(&t, v->eos); }
    gcuda_free(t.arena);
    return st;
}

static gcuda_status llmi_wpm(struct llmi_tokenizer * t, const char * text, size_t n) { (void)t;(void)text;(void)n; return GCUDA_STATUS_UNSUPPORTED; }

// ---- tokens to text ----

static bool llmi_is_shown(const struct llmi_vocab * v, int32_t token) {
    return v->type[token] == LLMI_NORMAL || v->type[token] == LLMI_USER_DEFINED || v->type[token] == LLMI_BYTE;
}

static void llmi_detokenize(const struct llmi_vocab * v, const int32_t * tokens, size_t n, bool with_special, struct llmi_out * out) {
    bool is_first = v->kind != LLMI_BPE && v->add_space; // the blank that tokenizing has added
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
    LLMI_TRIM_SYSTEM = 1, LLMI_TRIM_USER = 2, LLMI_TRIM_ASSISTANT = 4,
    LLMI_SYSTEM_IN_USER = 8, // the system's text comes first in the user's next message
    LLMI_DEFAULT_SYSTEM = 16, // the template has a text for chats without one
    LLMI_HARMONY = 32         // a head before everything
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
        { "<|im_start|>assistant<|im_sep|>", "<|im_end|>" } }, "<|im_start|>assistant<|im_sep|>", 0 },
    { "chatml", { "<|im_start|>", NULL },
      { { "<|im_start|>system\n", "<|im_end|>\n" }, { "<|im_start|>user\n", "<|im_end|>\n" },
        { "<|im_start|>assistant\n", "<|im_end|>\n" } }, "<|im_start|>assistant\n", LLMI_DEFAULT_SYSTEM },
    { "mistral-v7", { "[INST]", "[SYSTEM_PROMPT]" },
      { { "[SYSTEM_PROMPT] ", "[/SYSTEM_PROMPT]" }, { "[INST] ", "[/INST]" }, { " ", "</s>" } }, "", 0 },
    { "mistral-v1", { "[INST]", "' [INST] ' + system_message" },
      { { "", "" }, { " [INST] ", " [/INST]" }, { " ", "</s>" } }, "", LLMI_SYSTEM_IN_USER },
    { "mistral-v3-tekken", { "\"[INST]\"", "[AVAILABLE_TOOLS]" },
      { { "", "" }, { "[INST]", "[/INST]" }, { "", "</s>" } }, "", LLMI_SYSTEM_IN_USER },
    { "mistral-v3", { "[INST]", "[AVAILABLE_TOOLS]" },
      { { "", "" }, { "[INST] ", "[/INST]" }, { " ", "</s>" } }, "", LLMI_SYSTEM_IN_USER | LLMI_TRIM_ASSISTANT },
    { "phi3", { "<|assistant|>", "<|end|>" },
      { { "<|system|>\n", "<|end|>\n" }, { "<|user|>\n", "<|end|>\n" }, { "<|assistant|>\n", "<|end|>\n" } }, "<|assistant|>\n", 0 },
    { "gemma", { "<start_of_turn>", NULL },
      { { "", "" }, { "<start_of_turn>user\n", "<end_of_turn>\n" }, { "<start_of_turn>model\n", "<end_of_turn>\n" } },
      "<start_of_turn>model\n", LLMI_SYSTEM_IN_USER | LLMI_TRIM_ALL },
    { "llama3", { "<|start_header_id|>", "<|end_header_id|>" },
      { { "<|start_header_id|>system<|end_header_id|>\n\n", "<|eot_id|>" }, { "<|start_header_id|>user<|end_header_id|>\n\n", "<|eot_id|>" },
        { "<|start_header_id|>assistant<|end_header_id|>\n\n", "<|eot_id|>" } },
      "<|start_header_id|>assistant<|end_header_id|>\n\n", LLMI_TRIM_ALL },
    { "gpt-oss", { "<|start|>", "<|channel|>" },
      { { "<|start|>developer<|message|># Instructions\n\n", "\n\n<|end|>" }, { "<|start|>user<|message|>", "<|end|>" },
        { "<|start|>assistant<|channel|>final<|message|>", "<|end|>" } }, "<|start|>assistant", LLMI_HARMONY },
};

// The template that the text of tokenizer.chat_template is; NULL: none of those known.
static const struct llmi_template * llmi_template_of(const char * text) {
    for (size_t i = 0; text != NULL && i < sizeof llmi_templates / sizeof *llmi_templates; ++i) {
        const struct llmi_template * row = &llmi_templates[i];
        if (strcmp(text, row->name) == 0) { return row; }
        if (strstr(text, row->marks[0]) != NULL && (row->marks[1] == NULL || strstr(text, row->marks[1]) != NULL)) { return row; }
    }
    return NULL;
}

// The system text that a chatml template holds for chats without one: what is between its own marks, if it is plain text.
static const char * llmi_default_system(const char * text, size_t * n) {
    const char * begin = strstr(text, "<|im_start|>system");
    if (begin == NULL) { return NULL; }
    begin += 18;
    begin += begin[0] == '\n' ? 1 : strncmp(begin, "\\n", 2) == 0 ? 2 : 0; // a line's end, or as a template's text writes it
    const char * end = strstr(begin, "<|im_end|>");
    *n = end ? (size_t) (end - begin) : 0;
    return *n > 0 && strcspn(begin, "'\"{}\\") >= *n ? begin : NULL;
}

struct llmi_chat { // one call
    const struct llmi_template * t;
    struct llmi_out text;
    struct llmi_range * plain; // where messages are, in `text`; NULL: not wanted
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

static void llmi_chat_head(struct llmi_chat * c) {
    char date[16];
    const time_t now = time(NULL);
    const struct tm * utc = gmtime(&now);
    if (utc == NULL || strftime(date, sizeof date, "%Y-%m-%d", utc) == 0) { date[0] = '\0'; }
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

static void llmi_chat_message(struct llmi_chat * c, int role, const char * text, const char * system) {
    llmi_chat_template(c, c->t->around[role][0]);
    if (system != NULL) {
        llmi_chat_content(c, system, strlen(system), (c->t->traits & LLMI_TRIM_SYSTEM) != 0);
        llmi_chat_template(c, "\n\n");
    }
    llmi_chat_content(c, text, strlen(text), (c->t->traits & (LLMI_TRIM_SYSTEM << role)) != 0);
    llmi_chat_template(c, c->t->around[role][1]);
}

static gcuda_status llmi_chat_run(struct llmi_chat * c, const struct llm_message * messages, size_t n, bool is_open, const char * file_text) {
    const char * system = NULL; // waits for the user's next message
    size_t n_default = 0;
    if ((c->t->traits & LLMI_HARMONY) != 0) { llmi_chat_head(c); }
    const bool has_system = n > 0 && llmi_role(messages[0].role) == LLMI_SYSTEM;
    const char * preset = (c->t->traits & LLMI_DEFAULT_SYSTEM) != 0 && !has_system ? llmi_default_system(file_text, &n_default) : NULL;
    if (preset != NULL) {
        llmi_chat_template(c, c->t->around[LLMI_SYSTEM][0]);
        llmi_chat_content(c, preset, n_default, false);
        llmi_chat_template(c, c->t->around[LLMI_SYSTEM][1]);
    }
    for (size_t i = 0; i < n; ++i) {
        const int role = llmi_role(messages[i].role);
        if (role == LLMI_ROLES || messages[i].content == NULL) {
            return llmi_fail(GCUDA_STATUS_INVALID_ARGUMENT, "message %zu: the role is '%s', which is none of system, user, assistant, or there is no text",
                i, messages[i].role ? messages[i].role : "NULL");
        }
        if (role == LLMI_SYSTEM && (c->t->traits & LLMI_SYSTEM_IN_USER) != 0) {
            system = messages[i].content;
            continue;
        }
        llmi_chat_message(c, role, messages[i].content, role == LLMI_USER ? system : NULL);
        if (role == LLMI_USER) { system = NULL; }
    }
    if (is_open) { llmi_chat_template(c, c->t->open); }
    return GCUDA_STATUS_SUCCESS;
}

// =====================================================================================================
// >>arch   architectures: parameters, tensors, as tables
// =====================================================================================================

// A model is its traits, and the tensors of the two tables below that the traits ask for. Two more traits say what its file has.
enum llmi_trait {
    LLMI_DECODER = 1,
    LLMI_ENCODER = 2,       // BERT
    LLMI_QK_NORM = 4,       // queries and keys are normalised, each head for itself
    LLMI_POST_NORM = 8,     // what attention and feed-forward give is normalised before it is added
    LLMI_FFN_NORM = 16,     // the norm before feed-forward is called ffn_norm
    LLMI_SINKS = 32,        // each head has a logit of its own in the softmax
    LLMI_WINDOW = 64,       // some layers see a window only
    LLMI_DENSE = 128,       // feed-forward without experts, with a gate ...
    LLMI_FUSED_UP = 256,    // ... gate and up are one tensor
    LLMI_EXPERT_BIAS = 512, // experts and their router have biases
    LLMI_TOP_K_FIRST = 1024, // routing: the softmax is over the experts that were chosen
    LLMI_SCALE_EMBD = 2048, // embeddings are multiplied by sqrt(n_embd)
    LLMI_LONG_ROPE = 4096,  // factors for short and for long contexts
    LLMI_OWN_OUTPUT = 8192, // the output matrix is not that of the embeddings
    LLMI_MOE = 1 << 16,     // set by the file: it has experts
    LLMI_SPLIT_QKV = 1 << 17 // set by the file: queries, keys and values have matrices of their own
};
#define LLMI_ALL (LLMI_DECODER | LLMI_ENCODER)
#define LLMI_USUAL (LLMI_DECODER | LLMI_FFN_NORM | LLMI_DENSE)

static const struct llmi_arch {
    const char * name; // general.architecture
    int traits;
    enum gcuda_rope_type rope;
    enum gcuda_glu_op gate;
    int pattern;       // layers of which the last has no window, unless the file says
} llmi_archs[] = {
    { "llama", LLMI_USUAL, GCUDA_ROPE_TYPE_NORMAL, GCUDA_GLU_OP_SWIGLU, 0 },
    { "qwen2", LLMI_USUAL, GCUDA_ROPE_TYPE_NEOX, GCUDA_GLU_OP_SWIGLU, 0 },
    { "qwen3", LLMI_USUAL | LLMI_QK_NORM, GCUDA_ROPE_TYPE_NEOX, GCUDA_GLU_OP_SWIGLU, 0 },
    { "qwen3moe", LLMI_USUAL | LLMI_QK_NORM, GCUDA_ROPE_TYPE_NEOX, GCUDA_GLU_OP_SWIGLU, 0 },
    { "gemma3", LLMI_USUAL | LLMI_QK_NORM | LLMI_POST_NORM | LLMI_WINDOW | LLMI_SCALE_EMBD, GCUDA_ROPE_TYPE_NEOX, GCUDA_GLU_OP_GEGLU, 6 },
    { "gpt-oss", LLMI_DECODER | LLMI_SINKS | LLMI_WINDOW | LLMI_EXPERT_BIAS | LLMI_TOP_K_FIRST | LLMI_OWN_OUTPUT, GCUDA_ROPE_TYPE_NEOX,
      GCUDA_GLU_OP_SWIGLU_OAI, 2 },
    { "phi3", LLMI_DECODER | LLMI_FFN_NORM | LLMI_FUSED_UP | LLMI_LONG_ROPE, GCUDA_ROPE_TYPE_NEOX, GCUDA_GLU_OP_SWIGLU, 0 },
    { "bert", LLMI_ENCODER, GCUDA_ROPE_TYPE_NEOX, GCUDA_GLU_OP_GEGLU, 0 },
};

struct llmi_rope {
    float base, scale, extrapolate, magnitude, beta_fast, beta_slow;
};

// What the file's keys say.
struct llmi_params {
    int64_t n_vocab, n_ctx, n_embd, n_layers, n_ff, n_heads, n_kv, head, n_rot; // n_kv: heads of keys and values; head: its size
    int64_t n_experts, n_used, n_ff_expert, n_types;
    int64_t window, n_ctx_orig, pooling; // window 0: none
    float eps, softcap, q_scale;         // softcap: of logits, 0: none
    struct llmi_rope rope[2];            // of layers without a window, with one
};

// ---- tensors ----

enum llmi_dim { // sizes of tensors
    LLMI_ONE, LLMI_EMBD, LLMI_VOCAB, LLMI_CTX, LLMI_TYPES, LLMI_HEAD, LLMI_HEADS, LLMI_Q, LLMI_KV, LLMI_QKV, LLMI_FF, LLMI_FF_2, LLMI_FF_EXPERT,
    LLMI_EXPERTS, LLMI_HALF_ROT
};

struct llmi_weights { // NULL: the model has none
    struct gcuda_tensor * embd, * output_norm, * output, * output_b, * rope_freqs, * rope_long, * rope_short;
    struct gcuda_tensor * position_embd, * type_embd, * embd_norm, * embd_norm_b;
};
struct llmi_layer {
    struct gcuda_tensor * attn_norm, * qkv, * qkv_b, * q, * q_b, * k, * k_b, * v, * v_b, * q_norm, * k_norm, * sinks, * out, * out_b, * attn_post_norm;
    struct gcuda_tensor * ffn_norm, * gate, * gate_b, * up, * up_b, * down, * down_b, * ffn_post_norm;
    struct gcuda_tensor * router, * router_b, * gates, * gates_b, * ups, * ups_b, * downs, * downs_b; // experts
    struct gcuda_tensor * attn_out_norm, * attn_out_norm_b, * out_norm, * out_norm_b;                 // BERT
};

struct llmi_tensor_row {
    const char * name;
    size_t field;     // offset of the pointer
    enum llmi_dim ne[3];
    int needs, may;   // traits with which it has to exist, with which it may
};
#define LLMI_W(field) offsetof(struct llmi_weights, field)
#define LLMI_L(field) offsetof(struct llmi_layer, field)

// clang-format off
static const struct llmi_tensor_row llmi_weight_rows[] = {
    { "token_embd.weight",         LLMI_W(embd),          { LLMI_EMBD, LLMI_VOCAB, LLMI_ONE },          LLMI_ALL, 0 },
    { "output_norm.weight",        LLMI_W(output_norm),   { LLMI_EMBD, LLMI_ONE, LLMI_ONE },            LLMI_DECODER, 0 },
    { "output.weight",             LLMI_W(output),        { LLMI_EMBD, LLMI_VOCAB, LLMI_ONE },          LLMI_OWN_OUTPUT, LLMI_DECODER },
    { "output.bias",               LLMI_W(output_b),      { LLMI_VOCAB, LLMI_ONE, LLMI_ONE },           0, LLMI_DECODER },
    { "rope_freqs.weight",         LLMI_W(rope_freqs),    { LLMI_HALF_ROT, LLMI_ONE, LLMI_ONE },        0, LLMI_DECODER },
    { "rope_factors_long.weight",  LLMI_W(rope_long),     { LLMI_HALF_ROT, LLMI_ONE, LLMI_ONE },        0, LLMI_DECODER },
    { "rope_factors_short.weight", LLMI_W(rope_short),    { LLMI_HALF_ROT, LLMI_ONE, LLMI_ONE },        0, LLMI_DECODER },
    { "position_embd.weight",      LLMI_W(position_embd), { LLMI_EMBD, LLMI_CTX, LLMI_ONE },            LLMI_ENCODER, 0 },
    { "token_types.weight",        LLMI_W(type_embd),     { LLMI_EMBD, LLMI_TYPES, LLMI_ONE },          0, LLMI_ENCODER },
    { "token_embd_norm.weight",    LLMI_W(embd_norm),     { LLMI_EMBD, LLMI_ONE, LLMI_ONE },            LLMI_ENCODER, 0 },
    { "token_embd_norm.bias",      LLMI_W(embd_norm_b),   { LLMI_EMBD, LLMI_ONE, LLMI_ONE },            LLMI_ENCODER, 0 },
};
static const struct llmi_tensor_row llmi_layer_rows[] = { // names after "blk.N."
    { "attn_norm.weight",           LLMI_L(attn_norm),       { LLMI_EMBD, LLMI_ONE, LLMI_ONE },                LLMI_DECODER, 0 },
    { "attn_qkv.weight",            LLMI_L(qkv),             { LLMI_EMBD, LLMI_QKV, LLMI_ONE },                0, LLMI_ALL },
    { "attn_qkv.bias",              LLMI_L(qkv_b),           { LLMI_QKV, LLMI_ONE, LLMI_ONE },                 0, LLMI_ALL },
    { "attn_q.weight",              LLMI_L(q),               { LLMI_EMBD, LLMI_Q, LLMI_ONE },                  LLMI_SPLIT_QKV, 0 },
    { "attn_k.weight",              LLMI_L(k),               { LLMI_EMBD, LLMI_KV, LLMI_ONE },                 LLMI_SPLIT_QKV, 0 },
    { "attn_v.weight",              LLMI_L(v),               { LLMI_EMBD, LLMI_KV, LLMI_ONE },                 LLMI_SPLIT_QKV, 0 },
    { "attn_q.bias",                LLMI_L(q_b),             { LLMI_Q, LLMI_ONE, LLMI_ONE },                   0, LLMI_SPLIT_QKV },
    { "attn_k.bias",                LLMI_L(k_b),             { LLMI_KV, LLMI_ONE, LLMI_ONE },                  0, LLMI_SPLIT_QKV },
    { "attn_v.bias",                LLMI_L(v_b),             { LLMI_KV, LLMI_ONE, LLMI_ONE },                  0, LLMI_SPLIT_QKV },
    { "attn_q_norm.weight",         LLMI_L(q_norm),          { LLMI_HEAD, LLMI_ONE, LLMI_ONE },                LLMI_QK_NORM, 0 },
    { "attn_k_norm.weight",         LLMI_L(k_norm),          { LLMI_HEAD, LLMI_ONE, LLMI_ONE },                LLMI_QK_NORM, 0 },
    { "attn_sinks.weight",          LLMI_L(sinks),           { LLMI_HEADS, LLMI_ONE, LLMI_ONE },               LLMI_SINKS, 0 },
    { "attn_output.weight",         LLMI_L(out),             { LLMI_Q, LLMI_EMBD, LLMI_ONE },                  LLMI_ALL, 0 },
    { "attn_output.bias",           LLMI_L(out_b),           { LLMI_EMBD, LLMI_ONE, LLMI_ONE },                0, LLMI_ALL },
    { "post_attention_norm.weight", LLMI_L(attn_post_norm),  { LLMI_EMBD, LLMI_ONE, LLMI_ONE },                LLMI_POST_NORM, 0 },
    { "post_attention_norm.weight", LLMI_L(ffn_norm),        { LLMI_EMBD, LLMI_ONE, LLMI_ONE },                LLMI_EXPERT_BIAS, 0 }, // gpt-oss
    { "ffn_norm.weight",            LLMI_L(ffn_norm),        { LLMI_EMBD, LLMI_ONE, LLMI_ONE },                LLMI_FFN_NORM, 0 },
    { "post_ffw_norm.weight",       LLMI_L(ffn_post_norm),   { LLMI_EMBD, LLMI_ONE, LLMI_ONE },                LLMI_POST_NORM, 0 },
    { "ffn_gate.weight",            LLMI_L(gate),            { LLMI_EMBD, LLMI_FF, LLMI_ONE },                 LLMI_DENSE, 0 },
    { "ffn_up.weight",              LLMI_L(up),              { LLMI_EMBD, LLMI_FF, LLMI_ONE },                 LLMI_DENSE | LLMI_ENCODER, 0 },
    { "ffn_up.weight",              LLMI_L(up),              { LLMI_EMBD, LLMI_FF_2, LLMI_ONE },               LLMI_FUSED_UP, 0 },
    { "ffn_down.weight",            LLMI_L(down),            { LLMI_FF, LLMI_EMBD, LLMI_ONE },                 LLMI_DENSE | LLMI_FUSED_UP | LLMI_ENCODER, 0 },
    { "ffn_gate.bias",              LLMI_L(gate_b),          { LLMI_FF, LLMI_ONE, LLMI_ONE },                  0, LLMI_DENSE },
    { "ffn_up.bias",                LLMI_L(up_b),            { LLMI_FF, LLMI_ONE, LLMI_ONE },                  0, LLMI_DENSE | LLMI_ENCODER },
    { "ffn_down.bias",              LLMI_L(down_b),          { LLMI_EMBD, LLMI_ONE, LLMI_ONE },                0, LLMI_DENSE | LLMI_ENCODER },
    { "ffn_gate_inp.weight",        LLMI_L(router),          { LLMI_EMBD, LLMI_EXPERTS, LLMI_ONE },            LLMI_MOE, 0 },
    { "ffn_gate_inp.bias",          LLMI_L(router_b),        { LLMI_EXPERTS, LLMI_ONE, LLMI_ONE },             LLMI_EXPERT_BIAS, 0 },
    { "ffn_gate_exps.weight",       LLMI_L(gates),           { LLMI_EMBD, LLMI_FF_EXPERT, LLMI_EXPERTS },      LLMI_MOE, 0 },
    { "ffn_up_exps.weight",         LLMI_L(ups),             { LLMI_EMBD, LLMI_FF_EXPERT, LLMI_EXPERTS },      LLMI_MOE, 0 },
    { "ffn_down_exps.weight",       LLMI_L(downs),           { LLMI_FF_EXPERT, LLMI_EMBD, LLMI_EXPERTS },      LLMI_MOE, 0 },
    { "ffn_gate_exps.bias",         LLMI_L(gates_b),         { LLMI_FF_EXPERT, LLMI_EXPERTS, LLMI_ONE },       LLMI_EXPERT_BIAS, 0 },
    { "ffn_up_exps.bias",           LLMI_L(ups_b),           { LLMI_FF_EXPERT, LLMI_EXPERTS, LLMI_ONE },       LLMI_EXPERT_BIAS, 0 },
    { "ffn_down_exps.bias",         LLMI_L(downs_b),         { LLMI_EMBD, LLMI_EXPERTS, LLMI_ONE },            LLMI_EXPERT_BIAS, 0 },
    { "attn_output_norm.weight",    LLMI_L(attn_out_norm),   { LLMI_EMBD, LLMI_ONE, LLMI_ONE },                LLMI_ENCODER, 0 },
    { "attn_output_norm.bias",      LLMI_L(attn_out_norm_b), { LLMI_EMBD, LLMI_ONE, LLMI_ONE },                LLMI_ENCODER, 0 },
    { "layer_output_norm.weight",   LLMI_L(out_norm),        { LLMI_EMBD, LLMI_ONE, LLMI_ONE },                LLMI_ENCODER, 0 },
    { "layer_output_norm.bias",     LLMI_L(out_norm_b),      { LLMI_EMBD, LLMI_ONE, LLMI_ONE },                LLMI_ENCODER, 0 },
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

struct llm_model {
    struct gcuda_context * arena;   // of this struct and the tables
    struct gcuda_context * tensors; // descriptions of the weights
    gcuda_backend_buffer_t buffer;
    gcuda_backend_t backend;
    gcuda_backend_dev_t device;
    struct llmi_file file;
    const struct llmi_arch * arch;
    int traits;
    struct llmi_params params;
    struct llmi_weights w;
    struct llmi_layer * layers;
    bool * has_window; // of each layer
    struct llmi_vocab vocab;
    const char * name, * template_text;
    const struct llmi_template * chat;
    int64_t n_params;
    size_t n_bytes;
};

// ---- keys. Names after the architecture's, as in "llama.block_count" ----

struct llmi_key { char text[128]; };
static struct llmi_key llmi_key_of(const struct llmi_file * f, const char * name) {
    struct llmi_key key;
    snprintf(key.text, sizeof key.text, "%s.%s", f->arch, name);
    return key;
}
static gcuda_status llmi_int(const struct llmi_file * f, const char * name, bool is_required, int64_t min, int64_t max, int64_t * value) {
    const struct llmi_key key = llmi_key_of(f, name);
    return gcuda_gguf_get_int(f->g, key.text, is_required, min, max, value);
}
static gcuda_status llmi_float(const struct llmi_file * f, const char * name, bool is_required, float * value) {
    const struct llmi_key key = llmi_key_of(f, name);
    return gcuda_gguf_get_float(f->g, key.text, is_required, value);
}

// A number that files may give for each layer: only equal ones are supported.
static gcuda_status llmi_int_of_layers(const struct llmi_file * f, const char * name, bool is_required, int64_t n_layers, int64_t max, int64_t * value) {
    const struct llmi_key key = llmi_key_of(f, name);
    const int64_t id = gcuda_gguf_find_key(f->g, key.text);
    if (id < 0 || gcuda_gguf_get_kv_type(f->g, id) != GCUDA_GGUF_TYPE_ARRAY) { return gcuda_gguf_get_int(f->g, key.text, is_required, 1, max, value); }
    if (gcuda_gguf_get_arr_n(f->g, id) != (uint64_t) n_layers) {
        return llmi_fail(GCUDA_STATUS_INVALID_DATA, "the key '%s' has %llu elements for %lld layers", key.text,
            (unsigned long long) gcuda_gguf_get_arr_n(f->g, id), (long long) n_layers);
    }
    for (int64_t i = 0, first = 0; i < n_layers; ++i) {
        LLMI_TRY(gcuda_gguf_get_int_at(f->g, key.text, true, (uint64_t) i, 1, max, value));
        if (i == 0) { first = *value; }
        if (*value != first) { return llmi_fail(GCUDA_STATUS_UNSUPPORTED, "the key '%s' differs between layers: %lld and %lld", key.text, (long long) first, (long long) *value); }
    }
    return GCUDA_STATUS_SUCCESS;
}

static gcuda_status llmi_load_sizes(const struct llmi_file * f, struct llmi_params * p) {
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
        return llmi_fail(GCUDA_STATUS_INVALID_DATA, "%lld heads of queries cannot share %lld of keys evenly", (long long) p->n_heads, (long long) p->n_kv);
    }
    p->head = p->n_embd / p->n_heads;
    const int64_t divided = p->head;
    LLMI_TRY(llmi_int(f, "attention.key_length", false, 1, 65536, &p->head));
    int64_t head_v = p->head;
    LLMI_TRY(llmi_int(f, "attention.value_length", false, 1, 65536, &head_v));
    if (head_v != p->head) { return llmi_fail(GCUDA_STATUS_UNSUPPORTED, "keys of %lld elements, values of %lld", (long long) p->head, (long long) head_v); }
    if (p->head == divided && p->n_embd % p->n_heads != 0) {
        return llmi_fail(GCUDA_STATUS_INVALID_DATA, "%lld elements do not divide among %lld heads", (long long) p->n_embd, (long long) p->n_heads);
    }
    p->n_ff_expert = p->n_used > 0 ? llmi_max(1, p->n_ff / p->n_used) : 0;
    LLMI_TRY(llmi_int_of_layers(f, "expert_feed_forward_length", false, p->n_layers, big, &p->n_ff_expert));
    if (p->n_experts > 0 && p->n_used < 1) { return llmi_fail(GCUDA_STATUS_INVALID_DATA, "%lld experts, of which none is used", (long long) p->n_experts); }
    p->n_rot = p->head;
    LLMI_TRY(llmi_int(f, "rope.dimension_count", false, 2, p->head, &p->n_rot));
    return p->n_rot % 2 == 0 ? GCUDA_STATUS_SUCCESS : llmi_fail(GCUDA_STATUS_INVALID_DATA, "an odd number of elements is rotated: %lld", (long long) p->n_rot);
}

// The scaling of YaRN multiplies the magnitude by 1 + 0.1 ln(factor); gcuda_rope_ext does that itself, so it gets what is left.
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
        return llmi_fail(GCUDA_STATUS_UNSUPPORTED, "the key '%s' is '%.64s'; supported are none, linear, yarn and longrope", type_key.text, type);
    }
    if (factor < 0.0f || r->base <= 0.0f) { return llmi_fail(GCUDA_STATUS_INVALID_DATA, "rope: base %g, scaling factor %g", (double) r->base, (double) factor); }
    r->scale = factor > 0.0f && strcmp(type, "none") != 0 ? 1.0f / factor : 1.0f;
    r->extrapolate = is_yarn ? 1.0f : 0.0f;
    r->beta_fast = 32.0f;
    r->beta_slow = 1.0f;
    LLMI_TRY(llmi_float(f, "rope.scaling.yarn_ext_factor", false, &r->extrapolate));
    LLMI_TRY(llmi_float(f, "rope.scaling.yarn_beta_fast", false, &r->beta_fast));
    LLMI_TRY(llmi_float(f, "rope.scaling.yarn_beta_slow", false, &r->beta_slow));
    const float of_op = r->extrapolate != 0.0f ? 1.0f + 0.1f * logf(1.0f / r->scale) : 1.0f;
    r->magnitude = attn_factor * (magnitude > 0.0f ? magnitude : r->extrapolate != 0.0f && r->scale < 1.0f ? of_op : 1.0f) / of_op;
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
    LLMI_TRY(llmi_load_sizes(&m->file, p));
    p->n_vocab = m->vocab.n_tokens;
    LLMI_TRY(llmi_float(&m->file, is_encoder ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon", true, &p->eps));
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
        return llmi_fail(GCUDA_STATUS_UNSUPPORTED, "%s rotates %lld elements of heads of %lld", m->arch->name, (long long) p->n_rot, (long long) p->head);
    }
    if (p->n_experts > 0) { m->traits = (m->traits & ~LLMI_DENSE) | LLMI_MOE; }
    if (p->n_experts == 0 && (m->traits & LLMI_EXPERT_BIAS) != 0) { return llmi_fail(GCUDA_STATUS_INVALID_DATA, "the key 'expert_count' is missing or 0"); }
    if (gcuda_gguf_find_tensor(m->file.g, "blk.0.attn_qkv.weight") < 0) { m->traits |= LLMI_SPLIT_QKV; }
    return GCUDA_STATUS_SUCCESS;
}

// ---- tensors ----

static gcuda_status llmi_make_tensor(struct llm_model * m, const struct llmi_tensor_row * row, const char * name, struct gcuda_tensor ** field) {
    const int64_t id = gcuda_gguf_find_tensor(m->file.g, name);
    if (id < 0) {
        if ((row->needs & m->traits) == 0) { return GCUDA_STATUS_SUCCESS; }
        return llmi_fail(GCUDA_STATUS_INVALID_DATA, "the tensor '%s' is missing", name);
    }
    int64_t want[4] = { 1, 1, 1, 1 };
    for (int i = 0; i < 3; ++i) { want[i] = llmi_size(&m->params, row->ne[i]); }
    const int64_t * ne = gcuda_gguf_get_tensor_ne(m->file.g, id);
    if (memcmp(ne, want, sizeof want) != 0) {
        return llmi_fail(GCUDA_STATUS_INVALID_DATA, "the tensor '%s' is [%lld, %lld, %lld, %lld], by the file's keys it should be [%lld, %lld, %lld, 1]", name,
            (long long) ne[0], (long long) ne[1], (long long) ne[2], (long long) ne[3], (long long) want[0], (long long) want[1], (long long) want[2]);
    }
    struct gcuda_tensor * t = gcuda_new_tensor(m->tensors, gcuda_gguf_get_tensor_type(m->file.g, id), 4, ne);
    LLMI_TRY(t ? GCUDA_STATUS_SUCCESS : gcuda_context_status(m->tensors));
    (void) gcuda_set_name(t, name);
    m->n_params += gcuda_nelements(t);
    m->n_bytes += gcuda_nbytes(t);
    *field = t;
    return GCUDA_STATUS_SUCCESS;
}

static gcuda_status llmi_make_tensors(struct llm_model * m, const struct llmi_tensor_row * rows, size_t n_rows, const char * prefix, void * fields) {
    char name[64];
    for (size_t i = 0; i < n_rows; ++i) {
        if (((rows[i].needs | rows[i].may) & m->traits) == 0) { continue; }
        snprintf(name, sizeof name, "%s%s", prefix, rows[i].name);
        LLMI_TRY(llmi_make_tensor(m, &rows[i], name, (struct gcuda_tensor **) (void *) ((char *) fields + rows[i].field)));
    }
    return GCUDA_STATUS_SUCCESS;
}

// A tensor that no table names would be left out of the computation, and the result be wrong without a word.
static gcuda_status llmi_check_all_used(const struct llm_model * m) {
    for (int64_t i = 0; i < gcuda_gguf_get_n_tensors(m->file.g); ++i) {
        const char * name = gcuda_gguf_get_tensor_name(m->file.g, i);
        const bool is_ignored = strncmp(name, "dense_", 6) == 0 || strstr(name, "attn_rot_embd") != NULL || strstr(name, "rotary_emb.inv_freq") != NULL;
        if (!is_ignored && gcuda_get_tensor(m->tensors, name) == NULL) {
            return llmi_fail(GCUDA_STATUS_UNSUPPORTED, "the tensor '%s' is none that architecture %s has here", name, m->arch->name);
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
        LLMI_TRY(llmi_make_tensors(m, llmi_layer_rows, sizeof llmi_layer_rows / sizeof *llmi_layer_rows, prefix, &m->layers[i]));
    }
    if (m->w.output == NULL) { m->w.output = m->w.embd; }
    return llmi_check_all_used(m);
}

struct llmi_load_progress { llm_progress progress; void * user; };
static bool llmi_on_load(uint64_t done, uint64_t total, void * user) {
    const struct llmi_load_progress * p = (const struct llmi_load_progress *) user;
    return p->progress == NULL || p->progress(p->user, total ? (float) ((double) done / (double) total) : 1.0f);
}

static gcuda_status llmi_load_weights(struct llm_model * m, const struct llm_model_params * params) {
    struct llmi_load_progress progress = { params->progress, params->progress_user };
    struct gcuda_gguf_load_params load;
    memset(&load, 0, sizeof load);
    m->backend = params->backend ? gcuda_backend_init_by_name(params->backend, NULL) : gcuda_backend_init_best();
    if (m->backend == NULL) { return GCUDA_STATUS_INVALID_ARGUMENT; } // the message lists the devices
    m->device = gcuda_backend_get_device(m->backend);
    load.backend = m->backend;
    load.progress = llmi_on_load;
    load.progress_data = &progress;
    return gcuda_gguf_load(m->file.g, m->tensors, &load, &m->buffer);
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
        return llmi_fail(GCUDA_STATUS_UNSUPPORTED, "the architecture '%.64s' is not supported; these are: %s", m->file.arch, names);
    }
    m->traits = m->arch->traits;
    return GCUDA_STATUS_SUCCESS;
}

static gcuda_status llmi_load(struct llm_model * m, const char * path, const struct llm_model_params * params) {
    gcuda_status st = GCUDA_STATUS_FAILED;
    struct gcuda_gguf_init_params init;
    memset(&init, 0, sizeof init);
    init.status = &st;
    init.no_alloc = true;
    m->file.log = params->log;
    m->file.log_user = params->log_user;
    m->file.g = gcuda_gguf_init_from_file(path, init);
    if (m->file.g == NULL) { return st; }
    LLMI_TRY(llmi_find_arch(m));
    LLMI_TRY(llmi_vocab_load(&m->vocab, &m->file, m->arena));
    LLMI_TRY(llmi_load_params(m));
    LLMI_TRY(gcuda_gguf_get_str(m->file.g, "general.name", false, &m->name));
    LLMI_TRY(gcuda_gguf_get_str(m->file.g, "tokenizer.chat_template", false, &m->template_text));
    m->chat = llmi_template_of(m->template_text);
    LLMI_TRY(llmi_made(m->tensors = llmi_arena(0)));
    LLMI_TRY(llmi_make_all_tensors(m));
    return llmi_load_weights(m, params);
}

gcuda_status llm_model_load(const char * path, const struct llm_model_params * params, struct llm_model ** out) {
    struct llm_model_params zeros;
    memset(&zeros, 0, sizeof zeros);
    if (out == NULL || path == NULL) { return llmi_fail(GCUDA_STATUS_INVALID_ARGUMENT, "llm_model_load: path or out is NULL"); }
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
    gcuda_backend_free(m->backend);
    gcuda_free(m->arena); // and m
}

struct llm_info llm_model_info(const struct llm_model * m) {
    struct llm_info info;
    const struct llmi_params * p = &m->params;
    memset(&info, 0, sizeof info);
    info.arch = m->arch->name;
    info.name = m->name;
    info.backend = gcuda_backend_name(m->backend);
    info.template_name = m->chat ? m->chat->name : NULL;
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
    return info;
}

// ---- tokens of a model ----

static bool llmi_is_token(const struct llm_model * m, int32_t token) { return token >= 0 && token < m->vocab.n_tokens; }

gcuda_status llm_tokenize(const struct llm_model * m, const char * text, size_t n_bytes, int flags, int32_t * tokens, size_t capacity, size_t * n_tokens) {
    struct llmi_out out = llmi_out_of(tokens, sizeof *tokens, capacity);
    LLMI_TRY(llmi_tokenize(&m->vocab, text, n_bytes, NULL, 0, flags, &out));
    return llmi_put_done(&out, "tokens", n_tokens);
}

gcuda_status llm_detokenize(const struct llm_model * m, const int32_t * tokens, size_t n_tokens, bool with_special, char * text, size_t capacity, size_t * n_bytes) {
    struct llmi_out out = llmi_out_of(text, 1, capacity);
    for (size_t i = 0; i < n_tokens; ++i) {
        if (!llmi_is_token(m, tokens[i])) {
            return llmi_fail(GCUDA_STATUS_INVALID_ARGUMENT, "token %zu is %d, the model has 0 to %d", i, tokens[i], m->vocab.n_tokens - 1);
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
bool llm_token_is_end(const struct llm_model * m, int32_t token) { return llmi_is_token(m, token) && m->vocab.is_end[token]; }
bool llm_token_is_special(const struct llm_model * m, int32_t token) { return llmi_is_token(m, token) && !llmi_is_shown(&m->vocab, token); }
int32_t llm_token_bos(const struct llm_model * m) { return m->vocab.bos; }

static gcuda_status llmi_chat_begin(const struct llm_model * m, struct llmi_chat * c, void * text, size_t capacity) {
    memset(c, 0, sizeof *c);
    c->t = m->chat;
    c->text = llmi_out_of(text, 1, capacity);
    if (c->t != NULL) { return GCUDA_STATUS_SUCCESS; }
    return llmi_fail(GCUDA_STATUS_UNSUPPORTED, m->template_text ? "the file's tokenizer.chat_template is none that is known here"
        : "the file has no tokenizer.chat_template: the model is not made for chats");
}

gcuda_status llm_chat_text(const struct llm_model * m, const struct llm_message * messages, size_t n_messages, bool is_open, char * text, size_t capacity, size_t * n_bytes) {
    struct llmi_chat c;
    LLMI_TRY(llmi_chat_begin(m, &c, text, capacity));
    LLMI_TRY(llmi_chat_run(&c, messages, n_messages, is_open, m->template_text));
    return llmi_put_done(&c.text, "bytes of text", n_bytes);
}

static gcuda_status llmi_chat_tokenize(const struct llm_model * m, const struct llm_message * messages, size_t n, bool is_open,
    struct gcuda_context * arena, struct llmi_out * out) {
    size_t n_bytes = 0;
    struct llmi_chat c;
    LLMI_TRY(llm_chat_text(m, messages, n, is_open, NULL, 0, &n_bytes));
    char * text = LLMI_NEW(arena, char, n_bytes);
    LLMI_TRY(llmi_made(text));
    LLMI_TRY(llmi_chat_begin(m, &c, text, n_bytes));
    LLMI_TRY(llmi_made(c.plain = LLMI_NEW(arena, struct llmi_range, 2 * n + 1)));
    LLMI_TRY(llmi_chat_run(&c, messages, n, is_open, m->template_text));
    return llmi_tokenize(&m->vocab, text, n_bytes, c.plain, c.n_plain, LLM_PARSE_SPECIAL | LLM_ADD_SPECIAL, out);
}

gcuda_status llm_chat_tokenize(const struct llm_model * m, const struct llm_message * messages, size_t n_messages, bool is_open,
    int32_t * tokens, size_t capacity, size_t * n_tokens) {
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
struct llmi_cells {
    struct llmi_cell * cells;
    int32_t n, n_used, head; // head: where the search for a free one begins
    int32_t length[LLM_MAX_SEQS]; // of each sequence
};

static void llmi_cells_free(struct llmi_cells * c, int32_t i, uint64_t seqs) {
    if ((c->cells[i].seqs & seqs) == 0) { return; }
    c->cells[i].seqs &= ~seqs;
    if (c->cells[i].seqs == 0) {
        --c->n_used;
        c->head = (int32_t) llmi_min(c->head, i);
    }
}

// A free cell for the sequence's next position; the caller knows that there is one.
static int32_t llmi_cells_take(struct llmi_cells * c, int32_t seq, int32_t token) {
    int32_t i = c->head;
    while (c->cells[i].seqs != 0) { i = i + 1 == c->n ? 0 : i + 1; }
    c->cells[i].position = c->length[seq]++;
    c->cells[i].token = token;
    c->cells[i].seqs = (uint64_t) 1 << seq;
    c->head = i + 1 == c->n ? 0 : i + 1;
    ++c->n_used;
    return i;
}

static void llmi_cells_truncate(struct llmi_cells * c, int32_t seq, int32_t length) {
    if (length >= c->length[seq]) { return; }
    for (int32_t i = 0; i < c->n; ++i) {
        if (c->cells[i].position >= length) { llmi_cells_free(c, i, (uint64_t) 1 << seq); }
    }
    c->length[seq] = length;
}

static int32_t llmi_cells_end(const struct llmi_cells * c) { // after the last used cell
    int32_t end = c->n;
    while (end > 0 && c->cells[end - 1].seqs == 0) { --end; }
    return end;
}

static int32_t llmi_cells_find(const struct llmi_cells * c, int32_t seq, int32_t position) { // -1: none
    for (int32_t i = 0; i < c->n; ++i) {
        if (c->cells[i].position == position && (c->cells[i].seqs >> seq & 1) != 0) { return i; }
    }
    return -1;
}

// A token's row of the mask, as F16: 0 where it sees the cell, else -inf. window 0: none.
static void llmi_cells_mask(const struct llmi_cells * c, int32_t seq, int32_t position, int64_t window, uint16_t * row, int32_t n) {
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

struct llmi_graph_key { // two runs of equal keys use the same graph
    int32_t n_tokens, n_kv, n_outputs;
    int32_t is_embedding; // the result is what the output matrix would be given
};

struct llmi_inputs { // tensors that a run sets
    struct gcuda_tensor * tokens, * positions, * outputs, * cells; // I32; outputs: the tokens whose logits are wanted
    struct gcuda_tensor * mask[2]; // F16 [n_kv, n_tokens]: of layers without a window, with one
};

struct llmi_build {
    const struct llm_model * m;
    const struct llmi_params * p;
    struct gcuda_context * ctx;
    struct gcuda_cgraph * graph;
    struct gcuda_tensor ** k_cache, ** v_cache; // of each layer: [head * n_kv, cells]
    struct llmi_inputs in;
    struct llmi_graph_key key;
    bool exact, is_long; // is_long: rope factors for long contexts
};

// y = W x + bias; bias NULL: none.
static struct gcuda_tensor * llmi_linear(struct llmi_build * b, struct gcuda_tensor * w, struct gcuda_tensor * x, struct gcuda_tensor * bias) {
    struct gcuda_tensor * y = gcuda_mul_mat(b->ctx, w, x);
    if (y != NULL && b->exact) { (void) gcuda_mul_mat_set_prec(y, GCUDA_PREC_F32); }
    return bias ? gcuda_add(b->ctx, y, bias) : y;
}
static struct gcuda_tensor * llmi_linear_id(struct llmi_build * b, struct gcuda_tensor * w, struct gcuda_tensor * x, struct gcuda_tensor * ids,
    struct gcuda_tensor * bias) {
    struct gcuda_tensor * y = gcuda_mul_mat_id(b->ctx, w, x, ids);
    if (y != NULL && b->exact) { (void) gcuda_mul_mat_set_prec(y, GCUDA_PREC_F32); }
    return bias ? gcuda_add_id(b->ctx, y, bias, ids) : y;
}

static struct gcuda_tensor * llmi_norm(struct llmi_build * b, struct gcuda_tensor * x, struct gcuda_tensor * w) {
    return gcuda_mul(b->ctx, gcuda_rms_norm(b->ctx, x, b->p->eps), w);
}
static struct gcuda_tensor * llmi_layer_norm(struct llmi_build * b, struct gcuda_tensor * x, struct gcuda_tensor * w, struct gcuda_tensor * bias) {
    return gcuda_add(b->ctx, gcuda_mul(b->ctx, gcuda_norm(b->ctx, x, b->p->eps), w), bias);
}

static struct gcuda_tensor * llmi_input(struct llmi_build * b, enum gcuda_type type, int64_t ne0, int64_t ne1, const char * name) {
    struct gcuda_tensor * t = gcuda_new_tensor_2d(b->ctx, type, ne0, ne1);
    if (t == NULL) { return NULL; }
    gcuda_set_input(t);
    return gcuda_set_name(t, name);
}

// ---- attention ----

struct llmi_qkv { struct gcuda_tensor * q, * k, * v; }; // [head, heads, tokens]

static struct gcuda_tensor * llmi_heads(struct llmi_build * b, struct gcuda_tensor * x, int64_t n_heads) {
    return gcuda_reshape_3d(b->ctx, x, b->p->head, n_heads, b->key.n_tokens);
}
// Heads of a row that holds those of q, k and v; `first` is the number of heads before.
static struct gcuda_tensor * llmi_heads_of(struct llmi_build * b, struct gcuda_tensor * qkv, int64_t first, int64_t n_heads) {
    if (qkv == NULL) { return NULL; }
    const size_t head_bytes = (size_t) b->p->head * sizeof(float);
    return gcuda_view_3d(b->ctx, qkv, b->p->head, n_heads, b->key.n_tokens, head_bytes, qkv->nb[1], (size_t) first * head_bytes);
}

static struct llmi_qkv llmi_qkv(struct llmi_build * b, const struct llmi_layer * l, struct gcuda_tensor * x) {
    struct llmi_qkv a;
    const int64_t n_q = b->p->n_heads, n_kv = b->p->n_kv;
    if (l->qkv != NULL) {
        struct gcuda_tensor * qkv = llmi_linear(b, l->qkv, x, l->qkv_b);
        a.q = llmi_heads_of(b, qkv, 0, n_q);
        a.k = llmi_heads_of(b, qkv, n_q, n_kv);
        a.v = llmi_heads_of(b, qkv, n_q + n_kv, n_kv);
    } else {
        a.q = llmi_heads(b, llmi_linear(b, l->q, x, l->q_b), n_q);
        a.k = llmi_heads(b, llmi_linear(b, l->k, x, l->k_b), n_kv);
        a.v = llmi_heads(b, llmi_linear(b, l->v, x, l->v_b), n_kv);
    }
    if (l->q_norm != NULL) { a.q = llmi_norm(b, a.q, l->q_norm); }
    if (l->k_norm != NULL) { a.k = llmi_norm(b, a.k, l->k_norm); }
    return a;
}

static struct gcuda_tensor * llmi_rope_factors(const struct llm_model * m, bool is_long) {
    if (m->w.rope_long != NULL && m->w.rope_short != NULL) { return is_long ? m->w.rope_long : m->w.rope_short; }
    return m->w.rope_freqs;
}

static struct gcuda_tensor * llmi_rotate(struct llmi_build * b, int64_t layer, struct gcuda_tensor * x) {
    const struct llmi_rope * r = &b->p->rope[b->m->has_window[layer]];
    return gcuda_rope_ext(b->ctx, x, b->in.positions, llmi_rope_factors(b->m, b->is_long), (int) b->p->n_rot, b->m->arch->rope,
        (int) b->p->n_ctx_orig, r->base, r->scale, r->extrapolate, r->magnitude, r->beta_fast, r->beta_slow);
}

// The first n_kv cells of a cache as [head, cells, heads].
static struct gcuda_tensor * llmi_cache_view(struct llmi_build * b, struct gcuda_tensor * cache) {
    const size_t head_bytes = gcuda_row_size(cache->type, b->p->head);
    struct gcuda_tensor * view = gcuda_view_3d(b->ctx, cache, b->p->head, b->key.n_kv, b->p->n_kv, cache->nb[1], head_bytes, 0);
    if (view != NULL) { gcuda_set_dynamic(view); } // its length grows
    return view;
}

// Writes keys or values of the batch into their cells. Expanded at once: the views of the cache are read after it.
static void llmi_store(struct llmi_build * b, struct gcuda_tensor * cache, struct gcuda_tensor * x) {
    const int64_t n = b->p->head * b->p->n_kv;
    struct gcuda_tensor * rows = x == NULL ? NULL : gcuda_is_contiguous(x) ? gcuda_reshape_2d(b->ctx, x, n, b->key.n_tokens)
        : gcuda_view_2d(b->ctx, x, n, b->key.n_tokens, x->nb[2], 0);
    (void) gcuda_build_forward_expand(b->graph, gcuda_set_rows(b->ctx, cache, rows, b->in.cells));
}

static struct gcuda_tensor * llmi_attend(struct llmi_build * b, struct gcuda_tensor * q, struct gcuda_tensor * k, struct gcuda_tensor * v,
    struct gcuda_tensor * mask, struct gcuda_tensor * sinks) {
    struct gcuda_tensor * y = gcuda_flash_attn_ext(b->ctx, gcuda_permute(b->ctx, q, 0, 2, 1, 3), k, v, mask, b->p->q_scale, 0.0f, 0.0f);
    if (y != NULL && sinks != NULL) { (void) gcuda_flash_attn_ext_add_sinks(y, sinks); }
    if (y != NULL && b->exact) { (void) gcuda_flash_attn_ext_set_prec(y, GCUDA_PREC_F32); }
    return gcuda_reshape_2d(b->ctx, y, b->p->head * b->p->n_heads, b->key.n_tokens);
}

static struct gcuda_tensor * llmi_attention(struct llmi_build * b, int64_t layer, struct gcuda_tensor * x) {
    const struct llmi_layer * l = &b->m->layers[layer];
    struct llmi_qkv a = llmi_qkv(b, l, x);
    a.q = llmi_rotate(b, layer, a.q);
    a.k = llmi_rotate(b, layer, a.k);
    llmi_store(b, b->k_cache[layer], a.k);
    llmi_store(b, b->v_cache[layer], a.v);
    return llmi_attend(b, a.q, llmi_cache_view(b, b->k_cache[layer]), llmi_cache_view(b, b->v_cache[layer]),
        b->in.mask[b->m->has_window[layer]], l->sinks);
}

// ---- feed-forward ----

static struct gcuda_tensor * llmi_gate(struct llmi_build * b, struct gcuda_tensor * gate, struct gcuda_tensor * up) {
    if (b->m->arch->gate == GCUDA_GLU_OP_SWIGLU_OAI) { return gcuda_swiglu_oai(b->ctx, gate, up, 1.702f, 7.0f); }
    return gcuda_glu_split(b->ctx, gate, up, b->m->arch->gate);
}

static struct gcuda_tensor * llmi_dense(struct llmi_build * b, const struct llmi_layer * l, struct gcuda_tensor * x) {
    struct gcuda_tensor * up = llmi_linear(b, l->up, x, l->up_b);
    struct gcuda_tensor * h = l->gate ? llmi_gate(b, llmi_linear(b, l->gate, x, l->gate_b), up) : gcuda_glu(b->ctx, up, b->m->arch->gate, false);
    return llmi_linear(b, l->down, h, l->down_b);
}

struct llmi_routes { struct gcuda_tensor * ids, * weights; }; // [n_used, tokens], [1, n_used, tokens]

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
    } else { // what was chosen sums to 1; 2^-14 keeps a sum of nothing apart from 0
        w = gcuda_div(b->ctx, w, gcuda_clamp(b->ctx, gcuda_sum_rows(b->ctx, w), 6.103515625e-5f, INFINITY));
    }
    r.weights = gcuda_reshape_3d(b->ctx, w, 1, n_used, n_tokens);
    return r;
}

static struct gcuda_tensor * llmi_experts(struct llmi_build * b, const struct llmi_layer * l, struct gcuda_tensor * x) {
    const int64_t n_tokens = x ? x->ne[1] : 1;
    const struct llmi_routes r = llmi_route(b, l, x);
    struct gcuda_tensor * x3 = gcuda_reshape_3d(b->ctx, x, b->p->n_embd, 1, n_tokens), * sum = NULL;
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
    if (layer + 1 == b->p->n_layers) { // the rest is computed for the tokens whose logits are wanted
        a = gcuda_get_rows(b->ctx, a, b->in.outputs);
        x = gcuda_get_rows(b->ctx, x, b->in.outputs);
    }
    x = gcuda_add(b->ctx, x, a);
    struct gcuda_tensor * h = llmi_norm(b, x, l->ffn_norm);
    h = l->router ? llmi_experts(b, l, h) : llmi_dense(b, l, h);
    if (l->ffn_post_norm != NULL) { h = llmi_norm(b, h, l->ffn_post_norm); }
    return gcuda_add(b->ctx, x, h);
}

static struct gcuda_tensor * llmi_decoder(struct llmi_build * b) {
    struct gcuda_tensor * x = gcuda_get_rows(b->ctx, b->m->w.embd, b->in.tokens);
    if ((b->m->traits & LLMI_SCALE_EMBD) != 0) { x = gcuda_scale(b->ctx, x, sqrtf((float) b->p->n_embd)); }
    for (int64_t i = 0; i < b->p->n_layers; ++i) { x = llmi_decoder_layer(b, i, x); }
    x = llmi_norm(b, x, b->m->w.output_norm);
    if (b->key.is_embedding) { return x; }
    struct gcuda_tensor * logits = llmi_linear(b, b->m->w.output, x, b->m->w.output_b);
    if (b->p->softcap > 0.0f) {
        logits = gcuda_scale(b->ctx, gcuda_tanh(b->ctx, gcuda_scale(b->ctx, logits, 1.0f / b->p->softcap)), b->p->softcap);
    }
    return logits;
}

static struct gcuda_tensor * llmi_encoder_layer(struct llmi_build * b, const struct llmi_layer * l, struct gcuda_tensor * x) {
    const struct llmi_qkv a = llmi_qkv(b, l, x);
    struct gcuda_tensor * y = llmi_attend(b, a.q, gcuda_permute(b->ctx, a.k, 0, 2, 1, 3), gcuda_permute(b->ctx, a.v, 0, 2, 1, 3), b->in.mask[0], NULL);
    x = llmi_layer_norm(b, gcuda_add(b->ctx, x, llmi_linear(b, l->out, y, l->out_b)), l->attn_out_norm, l->attn_out_norm_b);
    y = llmi_linear(b, l->down, gcuda_gelu(b->ctx, llmi_linear(b, l->up, x, l->up_b)), l->down_b);
    return llmi_layer_norm(b, gcuda_add(b->ctx, x, y), l->out_norm, l->out_norm_b);
}

static struct gcuda_tensor * llmi_encoder(struct llmi_build * b) {
    struct gcuda_tensor * x = gcuda_get_rows(b->ctx, b->m->w.embd, b->in.tokens);
    if (b->m->w.type_embd != NULL) { x = gcuda_add(b->ctx, x, gcuda_view_1d(b->ctx, b->m->w.type_embd, b->p->n_embd, 0)); }
    x = gcuda_add(b->ctx, x, gcuda_get_rows(b->ctx, b->m->w.position_embd, b->in.positions));
    x = llmi_layer_norm(b, x, b->m->w.embd_norm, b->m->w.embd_norm_b);
    for (int64_t i = 0; i < b->p->n_layers; ++i) { x = llmi_encoder_layer(b, &b->m->layers[i], x); }
    return x;
}

static gcuda_status llmi_build_graph(struct llmi_build * b, size_t max_nodes, struct gcuda_tensor ** result) {
    const bool is_encoder = (b->m->traits & LLMI_ENCODER) != 0;
    const bool windows = b->p->window > 0;
    gcuda_reset(b->ctx);
    b->graph = gcuda_new_graph_custom(b->ctx, max_nodes, false);
    LLMI_TRY(b->graph ? GCUDA_STATUS_SUCCESS : gcuda_context_status(b->ctx));
    memset(&b->in, 0, sizeof b->in);
    b->in.tokens = llmi_input(b, GCUDA_TYPE_I32, b->key.n_tokens, 1, "tokens");
    b->in.positions = llmi_input(b, GCUDA_TYPE_I32, b->key.n_tokens, 1, "positions");
    b->in.mask[0] = llmi_input(b, GCUDA_TYPE_F16, b->key.n_kv, b->key.n_tokens, "mask");
    if (!is_encoder) {
        b->in.outputs = llmi_input(b, GCUDA_TYPE_I32, b->key.n_outputs, 1, "outputs");
        b->in.cells = llmi_input(b, GCUDA_TYPE_I32, b->key.n_tokens, 1, "cells");
        b->in.mask[1] = windows ? llmi_input(b, GCUDA_TYPE_F16, b->key.n_kv, b->key.n_tokens, "window mask") : NULL;
    }
    for (int i = 0; i < 2; ++i) {
        if (b->in.mask[i] != NULL) { gcuda_set_dynamic(b->in.mask[i]); }
    }
    *result = is_encoder ? llmi_encoder(b) : llmi_decoder(b);
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

enum { LLMI_KV_STEP = 256, LLMI_NODES_PER_LAYER = 96, LLMI_NODES_PER_SLICE = 8 };

struct llm_session {
    const struct llm_model * m;
    struct llm_session_params params;
    struct gcuda_context * arena; // of this struct and its arrays
    gcuda_backend_t backend;
    gcuda_gallocr_t galloc;
    gcuda_backend_event_t event;  // NULL: the backend has computed when it returns
    struct gcuda_context * cache; // descriptions
    gcuda_backend_buffer_t cache_buffer;
    struct llmi_cells cells;
    struct llmi_build build;      // the graph of the last run
    struct gcuda_tensor * result; // of it; NULL: there is no graph
    size_t max_nodes;
    // the batch
    int32_t * tokens, * seqs;
    bool * wants;
    int32_t n_batch, n_done;
    // the chunk being computed: n_chunk 0: none
    int32_t n_chunk, n_chunk_outputs, node;
    int32_t * chunk_cells, * chunk_positions, * chunk_outputs;
    uint16_t * masks[2];
    // results
    float * logits;
    int32_t * output_seqs, n_outputs;
    struct llmi_pick * picks; // of the sampler: n_vocab
};

static int64_t llmi_n_nodes(const struct llm_model * m) { return LLMI_NODES_PER_LAYER * (m->params.n_layers + 1); }

static bool llmi_on_abort(void * user) {
    const struct llm_session * s = (const struct llm_session *) user;
    const float share = s->n_batch > 0 ? (float) s->n_done / (float) s->n_batch : 0.0f;
    return !s->params.progress(s->params.progress_user, share);
}

static gcuda_status llmi_session_backend(struct llm_session * s) {
    LLMI_TRY((s->backend = gcuda_backend_dev_init(s->m->device, NULL)) != NULL ? GCUDA_STATUS_SUCCESS : GCUDA_STATUS_FAILED);
    if (gcuda_backend_is_cpu(s->backend)) {
        LLMI_TRY(gcuda_backend_cpu_set_n_threads(s->backend, s->params.n_threads));
        return s->params.progress ? gcuda_backend_cpu_set_abort_callback(s->backend, llmi_on_abort, s) : GCUDA_STATUS_SUCCESS;
    }
    s->event = gcuda_backend_event_new(s->m->device);
    return llmi_made(s->event);
}

// The caches of keys and values, all zeros: cells without a token are multiplied by a weight of 0, and must be numbers.
static gcuda_status llmi_session_cache(struct llm_session * s) {
    const struct llmi_params * p = &s->m->params;
    const enum gcuda_type type = s->params.kv_type;
    LLMI_TRY(llmi_made(s->build.k_cache = LLMI_NEW(s->arena, struct gcuda_tensor *, p->n_layers)));
    LLMI_TRY(llmi_made(s->build.v_cache = LLMI_NEW(s->arena, struct gcuda_tensor *, p->n_layers)));
    if ((s->m->traits & LLMI_ENCODER) != 0) { return GCUDA_STATUS_SUCCESS; }
    if (p->head % gcuda_blck_size(type) != 0) {
        return llmi_fail(GCUDA_STATUS_UNSUPPORTED, "a cache of type %s needs heads of a multiple of %lld elements, the model's have %lld", gcuda_type_name(type),
            (long long) gcuda_blck_size(type), (long long) p->head);
    }
    LLMI_TRY(llmi_made(s->cache = llmi_arena(0)));
    for (int64_t i = 0; i < p->n_layers; ++i) {
        s->build.k_cache[i] = gcuda_new_tensor_2d(s->cache, type, p->head * p->n_kv, s->params.n_ctx);
        s->build.v_cache[i] = gcuda_new_tensor_2d(s->cache, type, p->head * p->n_kv, s->params.n_ctx);
        (void) gcuda_format_name(s->build.k_cache[i], "k cache %d", (int) i);
        (void) gcuda_format_name(s->build.v_cache[i], "v cache %d", (int) i);
    }
    LLMI_TRY(gcuda_context_status(s->cache));
    LLMI_TRY(llmi_made(s->cache_buffer = gcuda_backend_alloc_ctx_tensors(s->cache, s->backend)));
    return gcuda_backend_buffer_clear(s->cache_buffer, 0);
}

static gcuda_status llmi_session_arrays(struct llm_session * s) {
    const struct llmi_params * p = &s->m->params;
    const struct llm_session_params * q = &s->params;
    const size_t n_rows = (size_t) llmi_max(q->n_outputs, 1), mask = (size_t) q->n_chunk * (size_t) q->n_ctx;
    const size_t logits = llmi_max((int64_t) n_rows * p->n_vocab, q->n_chunk * p->n_embd) > 0
        ? (size_t) llmi_max((int64_t) n_rows * p->n_vocab, q->n_chunk * p->n_embd) : 1;
    s->cells.n = q->n_ctx;
    LLMI_TRY(llmi_made(s->cells.cells = LLMI_NEW(s->arena, struct llmi_cell, q->n_ctx)));
    LLMI_TRY(llmi_made(s->tokens = LLMI_NEW(s->arena, int32_t, q->n_ctx)));
    LLMI_TRY(llmi_made(s->seqs = LLMI_NEW(s->arena, int32_t, q->n_ctx)));
    LLMI_TRY(llmi_made(s->wants = LLMI_NEW(s->arena, bool, q->n_ctx)));
    LLMI_TRY(llmi_made(s->chunk_cells = LLMI_NEW(s->arena, int32_t, q->n_chunk)));
    LLMI_TRY(llmi_made(s->chunk_positions = LLMI_NEW(s->arena, int32_t, q->n_chunk)));
    LLMI_TRY(llmi_made(s->chunk_outputs = LLMI_NEW(s->arena, int32_t, q->n_chunk)));
    LLMI_TRY(llmi_made(s->masks[0] = LLMI_NEW(s->arena, uint16_t, mask)));
    if (p->window > 0) { LLMI_TRY(llmi_made(s->masks[1] = LLMI_NEW(s->arena, uint16_t, mask))); }
    LLMI_TRY(llmi_made(s->logits = LLMI_NEW(s->arena, float, logits)));
    LLMI_TRY(llmi_made(s->output_seqs = LLMI_NEW(s->arena, int32_t, n_rows)));
    return llmi_made(s->picks = LLMI_NEW(s->arena, struct llmi_pick, p->n_vocab));
}

// The graph of a key, placed in memory. The one of the run before is used again if its key was the same.
static gcuda_status llmi_use_graph(struct llm_session * s, struct llmi_graph_key key) {
    if (s->result != NULL && memcmp(&key, &s->build.key, sizeof key) == 0) { return GCUDA_STATUS_SUCCESS; }
    s->result = NULL;
    s->build.key = key;
    struct gcuda_tensor * result = NULL;
    LLMI_TRY(llmi_build_graph(&s->build, s->max_nodes, &result));
    LLMI_TRY(gcuda_gallocr_alloc_graph(s->galloc, s->build.graph));
    s->result = result;
    return GCUDA_STATUS_SUCCESS;
}

// Memory for the largest graph, so that none of those that come takes any.
static gcuda_status llmi_session_reserve(struct llm_session * s) {
    const struct llmi_graph_key largest = { s->params.n_chunk, s->params.n_ctx, s->params.n_outputs, 0 };
    struct gcuda_tensor * result = NULL;
    s->max_nodes = (size_t) llmi_n_nodes(s->m);
    s->build.m = s->m;
    s->build.p = &s->m->params;
    s->build.key = largest;
    s->build.exact = s->params.exact;
    s->build.is_long = s->params.n_ctx > s->m->params.n_ctx_orig;
    const size_t size = 2 * s->max_nodes * gcuda_tensor_overhead() + gcuda_graph_overhead_custom(s->max_nodes, false);
    LLMI_TRY(llmi_made(s->build.ctx = llmi_arena(size)));
    LLMI_TRY(llmi_made(s->galloc = gcuda_gallocr_new(gcuda_backend_get_default_buffer_type(s->backend))));
    LLMI_TRY(llmi_build_graph(&s->build, s->max_nodes, &result));
    return gcuda_gallocr_reserve(s->galloc, s->build.graph);
}

static gcuda_status llmi_session_defaults(struct llm_session_params * q, const struct llm_model * m) {
    const bool is_encoder = (m->traits & LLMI_ENCODER) != 0;
    const int64_t n_ctx = m->params.n_ctx;
    if (q->n_ctx < 0 || q->n_seqs < 0 || q->n_chunk < 0 || q->n_outputs < 0 || q->n_seqs > LLM_MAX_SEQS || q->n_ctx > 1 << 26) {
        return llmi_fail(GCUDA_STATUS_INVALID_ARGUMENT, "llm_session_new: n_ctx %d (at most %d), n_seqs %d (at most %d), n_chunk %d, n_outputs %d", q->n_ctx, 1 << 26,
            q->n_seqs, (int) LLM_MAX_SEQS, q->n_chunk, q->n_outputs);
    }
    if (q->n_ctx == 0) { q->n_ctx = (int32_t) llmi_min(n_ctx, 4096); }
    if (is_encoder) { q->n_ctx = (int32_t) llmi_min(q->n_ctx, n_ctx); } // it has an embedding for each position
    if (q->n_chunk == 0) { q->n_chunk = is_encoder ? q->n_ctx : 256; }
    q->n_chunk = (int32_t) llmi_min(q->n_chunk, q->n_ctx);
    if (!is_encoder) { q->n_ctx = (int32_t) llmi_pad(q->n_ctx, LLMI_KV_STEP); }
    if (q->n_seqs == 0) { q->n_seqs = 1; }
    if (q->n_outputs == 0) { q->n_outputs = q->n_seqs; }
    if (!q->kv_is_set) { q->kv_type = GCUDA_TYPE_F16; }
    return GCUDA_STATUS_SUCCESS;
}

static gcuda_status llmi_session_init(struct llm_session * s) {
    LLMI_TRY(llmi_session_backend(s));
    LLMI_TRY(llmi_session_cache(s));
    LLMI_TRY(llmi_session_arrays(s));
    return llmi_session_reserve(s);
}

gcuda_status llm_session_new(const struct llm_model * m, const struct llm_session_params * params, struct llm_session ** out) {
    if (m == NULL || out == NULL) { return llmi_fail(GCUDA_STATUS_INVALID_ARGUMENT, "llm_session_new: model or out is NULL"); }
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
    if (s->backend != NULL) { (void) gcuda_backend_synchronize(s->backend); }
    gcuda_gallocr_free(s->galloc);
    gcuda_free(s->build.ctx);
    gcuda_backend_buffer_free(s->cache_buffer);
    gcuda_free(s->cache);
    gcuda_backend_event_free(s->event);
    gcuda_backend_free(s->backend);
    gcuda_free(s->arena); // and s
}

// ---- a chunk: cells, inputs, graph ----

static void llmi_chunk_cells(struct llm_session * s) {
    for (int32_t i = 0; i < s->n_chunk; ++i) {
        const int32_t at = s->n_done + i;
        s->chunk_positions[i] = s->cells.length[s->seqs[at]];
        s->chunk_cells[i] = llmi_cells_take(&s->cells, s->seqs[at], s->tokens[at]);
        if (s->wants[at]) { s->chunk_outputs[s->n_chunk_outputs++] = i; }
    }
}

// Takes the chunk's tokens out of the cache again: they were not computed.
static void llmi_chunk_undo(struct llm_session * s) {
    for (int32_t i = s->n_chunk - 1; i >= 0; --i) {
        const int32_t seq = s->seqs[s->n_done + i];
        llmi_cells_free(&s->cells, s->chunk_cells[i], (uint64_t) 1 << seq);
        --s->cells.length[seq];
    }
    s->n_chunk = 0;
}

static gcuda_status llmi_set_input(struct llm_session * s, struct gcuda_tensor * t, const void * data) {
    if (t == NULL || t->data == NULL) { return GCUDA_STATUS_SUCCESS; } // no node reads it
    return gcuda_backend_tensor_set_async(s->backend, t, data, 0, gcuda_nbytes(t));
}

static gcuda_status llmi_chunk_inputs(struct llm_session * s) {
    const struct llmi_inputs * in = &s->build.in;
    const int32_t n_kv = s->build.key.n_kv;
    for (int32_t i = 0; i < s->n_chunk; ++i) {
        const int32_t seq = s->seqs[s->n_done + i], position = s->chunk_positions[i];
        llmi_cells_mask(&s->cells, seq, position, 0, s->masks[0] + (size_t) i * (size_t) n_kv, n_kv);
        if (in->mask[1] != NULL) { llmi_cells_mask(&s->cells, seq, position, s->m->params.window, s->masks[1] + (size_t) i * (size_t) n_kv, n_kv); }
    }
    LLMI_TRY(llmi_set_input(s, in->tokens, s->tokens + s->n_done));
    LLMI_TRY(llmi_set_input(s, in->positions, s->chunk_positions));
    LLMI_TRY(llmi_set_input(s, in->cells, s->chunk_cells));
    LLMI_TRY(llmi_set_input(s, in->outputs, s->chunk_outputs));
    LLMI_TRY(llmi_set_input(s, in->mask[0], s->masks[0]));
    return llmi_set_input(s, in->mask[1], s->masks[1]);
}

// A chunk of whose tokens no logits are wanted computes those of its first: the graph keeps its form.
static gcuda_status llmi_chunk_begin(struct llm_session * s, bool is_embedding) {
    s->n_chunk = (int32_t) llmi_min(s->n_batch - s->n_done, s->params.n_chunk);
    s->n_chunk_outputs = 0;
    s->node = 0;
    llmi_chunk_cells(s);
    if (s->n_chunk_outputs == 0) { s->chunk_outputs[0] = 0; }
    const struct llmi_graph_key key = { s->n_chunk, (int32_t) llmi_min(llmi_pad(llmi_cells_end(&s->cells), LLMI_KV_STEP), s->cells.n),
        (int32_t) llmi_max(s->n_chunk_outputs, 1), is_embedding };
    LLMI_TRY(llmi_use_graph(s, key));
    return llmi_chunk_inputs(s);
}

static gcuda_status llmi_chunk_read(struct llm_session * s) {
    const size_t n_vocab = (size_t) s->m->params.n_vocab;
    if (s->n_chunk_outputs == 0) { return GCUDA_STATUS_SUCCESS; }
    return gcuda_backend_tensor_get_async(s->backend, s->result, s->logits + (size_t) s->n_outputs * n_vocab, 0,
        (size_t) s->n_chunk_outputs * n_vocab * sizeof(float));
}

static void llmi_chunk_done(struct llm_session * s) {
    for (int32_t i = 0; i < s->n_chunk_outputs; ++i) { s->output_seqs[s->n_outputs++] = s->seqs[s->n_done + s->chunk_outputs[i]]; }
    s->n_done += s->n_chunk;
    s->n_chunk = 0;
}

// ---- steps ----

// Of a backend that computes on its own: all is queued at once.
static gcuda_status llmi_start_device(struct llm_session * s) {
    LLMI_TRY(gcuda_backend_graph_compute_async(s->backend, s->build.graph));
    LLMI_TRY(llmi_chunk_read(s));
    return gcuda_backend_event_record(s->event, s->backend);
}

static gcuda_status llmi_step_device(struct llm_session * s, bool wait, bool * is_ready) {
    if (!wait) { LLMI_TRY(gcuda_backend_event_query(s->event, is_ready)); }
    if (!wait && !*is_ready) { return GCUDA_STATUS_SUCCESS; }
    *is_ready = true;
    return gcuda_backend_synchronize(s->backend);
}

// On the CPU: nodes until the time is over; end 0: all.
static gcuda_status llmi_step_cpu(struct llm_session * s, int64_t end_us, bool * is_ready) {
    const int32_t n = gcuda_graph_n_nodes(s->build.graph);
    while (s->node < n && (end_us == 0 || gcuda_time_us() < end_us)) {
        const int32_t last = end_us == 0 ? n : (int32_t) llmi_min(s->node + LLMI_NODES_PER_SLICE, n);
        struct gcuda_cgraph slice = gcuda_graph_view(s->build.graph, s->node, last);
        LLMI_TRY(gcuda_backend_graph_compute(s->backend, s->node == 0 && last == n ? s->build.graph : &slice));
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
    return s->event != NULL ? llmi_step_device(s, end_us == 0, is_ready) : llmi_step_cpu(s, end_us, is_ready);
}

void llm_cancel(struct llm_session * s) {
    if (s->event != NULL && s->n_chunk > 0) { (void) gcuda_backend_synchronize(s->backend); }
    llmi_chunk_undo(s);
    s->n_batch = s->n_done = 0;
}

bool llm_is_busy(const struct llm_session * s) { return s->n_done < s->n_batch; }

gcuda_status llm_poll(struct llm_session * s, int64_t max_us, bool * is_done) {
    const int64_t end_us = max_us > 0 ? gcuda_time_us() + max_us : 0;
    *is_done = false;
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
    if (llm_is_busy(s)) { return llmi_fail(GCUDA_STATUS_INVALID_ARGUMENT, "the session is at work: llm_poll until it is done, or llm_cancel"); }
    if ((s->m->traits & LLMI_ENCODER) != 0) { return llmi_fail(GCUDA_STATUS_UNSUPPORTED, "%s has no logits: use llm_embed", s->m->arch->name); }
    if (b->n_tokens == 0 || b->tokens == NULL) { return llmi_fail(GCUDA_STATUS_INVALID_ARGUMENT, "a batch without tokens"); }
    if (b->n_tokens > (size_t) (s->cells.n - s->cells.n_used)) {
        return llmi_fail(GCUDA_STATUS_UNSUPPORTED, "%zu tokens do not fit: %d of the context's %d are free", b->n_tokens, s->cells.n - s->cells.n_used, s->cells.n);
    }
    for (size_t i = 0; i < b->n_tokens; ++i) {
        const int32_t seq = b->seqs ? b->seqs[i] : 0;
        if (!llmi_is_token(s->m, b->tokens[i]) || seq < 0 || seq >= s->params.n_seqs) {
            return llmi_fail(GCUDA_STATUS_INVALID_ARGUMENT, "token %zu of the batch: token %d of sequence %d; the model has %d tokens, the session %d sequences", i,
                b->tokens[i], seq, s->m->vocab.n_tokens, s->params.n_seqs);
        }
    }
    return GCUDA_STATUS_SUCCESS;
}

// Marks the tokens whose logits are wanted, and counts them.
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
        return llmi_fail(GCUDA_STATUS_INVALID_ARGUMENT, "logits of %d tokens are wanted, the session was made for %d", n_outputs, s->params.n_outputs);
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
    if (seq < 0 || seq >= s->params.n_seqs) {
        return llmi_fail(GCUDA_STATUS_INVALID_ARGUMENT, "sequence %d, the session has %d", seq, s->params.n_seqs);
    }
    struct llm_batch b = { tokens, NULL, NULL, n_tokens };
    LLMI_TRY(llmi_check_batch(s, &b));
    for (size_t i = 0; i < n_tokens; ++i) { s->seqs[i] = seq; }
    b.seqs = s->seqs;
    return llm_eval(s, &b);
}

// ---- results ----

int32_t llm_n_outputs(const struct llm_session * s) { return s->n_outputs; }
const float * llm_logits(const struct llm_session * s, int32_t i) {
    if (i < 0) { i += s->n_outputs; }
    return i < 0 || i >= s->n_outputs ? NULL : s->logits + (size_t) i * (size_t) s->m->params.n_vocab;
}
const float * llm_seq_logits(const struct llm_session * s, int32_t seq) {
    for (int32_t i = s->n_outputs - 1; i >= 0; --i) {
        if (s->output_seqs[i] == seq) { return llm_logits(s, i); }
    }
    return NULL;
}

// ---- sequences ----

static gcuda_status llmi_check_seq(const struct llm_session * s, int32_t seq) {
    if (llm_is_busy(s)) { return llmi_fail(GCUDA_STATUS_INVALID_ARGUMENT, "the session is at work: llm_poll until it is done, or llm_cancel"); }
    if (seq >= 0 && seq < s->params.n_seqs) { return GCUDA_STATUS_SUCCESS; }
    return llmi_fail(GCUDA_STATUS_INVALID_ARGUMENT, "sequence %d, the session has %d", seq, s->params.n_seqs);
}

int32_t llm_n_ctx(const struct llm_session * s) { return s->cells.n; }
int32_t llm_n_free(const struct llm_session * s) { return s->cells.n - s->cells.n_used; }
int32_t llm_seq_length(const struct llm_session * s, int32_t seq) { return seq < 0 || seq >= s->params.n_seqs ? 0 : s->cells.length[seq]; }
int32_t llm_seq_token(const struct llm_session * s, int32_t seq, int32_t position) {
    if (position < 0 || position >= llm_seq_length(s, seq)) { return LLMI_NONE; }
    const int32_t cell = llmi_cells_find(&s->cells, seq, position);
    return cell < 0 ? LLMI_NONE : s->cells.cells[cell].token;
}

gcuda_status llm_seq_truncate(struct llm_session * s, int32_t seq, int32_t length) {
    LLMI_TRY(llmi_check_seq(s, seq));
    llmi_cells_truncate(&s->cells, seq, (int32_t) llmi_max(length, 0));
    return GCUDA_STATUS_SUCCESS;
}

gcuda_status llm_seq_keep_prefix(struct llm_session * s, int32_t seq, const int32_t * tokens, size_t n_tokens, size_t * n_kept) {
    LLMI_TRY(llmi_check_seq(s, seq));
    const int32_t most = (int32_t) llmi_min(s->cells.length[seq], (int64_t) n_tokens - 1);
    int32_t first_other = (int32_t) llmi_max(most, 0); // the first position whose token is another
    for (int32_t i = 0; i < s->cells.n; ++i) {
        const struct llmi_cell * cell = &s->cells.cells[i];
        if ((cell->seqs >> seq & 1) != 0 && cell->position < first_other && cell->token != tokens[cell->position]) { first_other = cell->position; }
    }
    llmi_cells_truncate(&s->cells, seq, first_other);
    *n_kept = (size_t) first_other;
    return GCUDA_STATUS_SUCCESS;
}

gcuda_status llm_seq_copy(struct llm_session * s, int32_t from, int32_t to) {
    LLMI_TRY(llmi_check_seq(s, from));
    LLMI_TRY(llmi_check_seq(s, to));
    if (from == to) { return GCUDA_STATUS_SUCCESS; }
    llmi_cells_truncate(&s->cells, to, 0);
    for (int32_t i = 0; i < s->cells.n; ++i) { s->cells.cells[i].seqs |= (s->cells.cells[i].seqs >> from & 1) << to; }
    s->cells.length[to] = s->cells.length[from];
    return GCUDA_STATUS_SUCCESS;
}

// Rotates the keys of the cells by `by` positions: those of the graph's inputs. Its magnitude is 1: keys have theirs already.
static struct gcuda_tensor * llmi_shift_layer(struct llmi_build * b, int64_t layer) {
    struct llmi_rope r = b->p->rope[b->m->has_window[layer]];
    struct gcuda_tensor * cache = b->k_cache[layer];
    struct gcuda_tensor * k = llmi_heads(b, gcuda_get_rows(b->ctx, cache, b->in.cells), b->p->n_kv);
    const float magnitude = r.extrapolate != 0.0f ? 1.0f / (1.0f + 0.1f * logf(1.0f / r.scale)) : 1.0f;
    k = gcuda_rope_ext(b->ctx, k, b->in.positions, llmi_rope_factors(b->m, b->is_long), (int) b->p->n_rot, b->m->arch->rope, (int) b->p->n_ctx_orig,
        r.base, r.scale, r.extrapolate, magnitude, r.beta_fast, r.beta_slow);
    return gcuda_set_rows(b->ctx, cache, gcuda_reshape_2d(b->ctx, k, b->p->head * b->p->n_kv, b->key.n_tokens), b->in.cells);
}

static gcuda_status llmi_shift_keys(struct llm_session * s, const int32_t * cells, const int32_t * by, int32_t n) {
    struct llmi_build * b = &s->build;
    s->result = NULL; // another graph is in its place
    gcuda_reset(b->ctx);
    memset(&b->key, 0, sizeof b->key);
    b->key.n_tokens = n;
    b->graph = gcuda_new_graph_custom(b->ctx, s->max_nodes, false);
    b->in.cells = llmi_input(b, GCUDA_TYPE_I32, n, 1, "cells");
    b->in.positions = llmi_input(b, GCUDA_TYPE_I32, n, 1, "positions");
    for (int64_t i = 0; i < b->p->n_layers; ++i) { LLMI_TRY(gcuda_build_forward_expand(b->graph, llmi_shift_layer(b, i))); }
    LLMI_TRY(gcuda_gallocr_alloc_graph(s->galloc, b->graph));
    LLMI_TRY(gcuda_backend_tensor_set(b->in.cells, cells, 0, gcuda_nbytes(b->in.cells)));
    LLMI_TRY(gcuda_backend_tensor_set(b->in.positions, by, 0, gcuda_nbytes(b->in.positions)));
    return gcuda_backend_graph_compute(s->backend, b->graph);
}

gcuda_status llm_seq_shift(struct llm_session * s, int32_t seq, int32_t n_keep, int32_t n_drop) {
    LLMI_TRY(llmi_check_seq(s, seq));
    struct llmi_cells * c = &s->cells;
    const uint64_t mine = (uint64_t) 1 << seq;
    if (n_keep < 0 || n_drop < 1 || n_drop > c->length[seq] - n_keep) {
        return llmi_fail(GCUDA_STATUS_INVALID_ARGUMENT, "llm_seq_shift: %d positions after the first %d of %d cannot be dropped", n_drop, n_keep, c->length[seq]);
    }
    int32_t n = 0;
    for (int32_t i = 0; i < c->n; ++i) {
        if ((c->cells[i].seqs & mine) == 0 || c->cells[i].position < n_keep + n_drop) { continue; }
        if (c->cells[i].seqs != mine) { return llmi_fail(GCUDA_STATUS_UNSUPPORTED, "position %d of sequence %d belongs to other sequences too", c->cells[i].position, seq); }
        s->tokens[n] = i; // the batch's arrays: no batch is at work
        s->seqs[n++] = -n_drop;
    }
    if (n > 0) { LLMI_TRY(llmi_shift_keys(s, s->tokens, s->seqs, n)); }
    for (int32_t i = 0; i < c->n; ++i) {
        if ((c->cells[i].seqs & mine) == 0 || c->cells[i].position < n_keep) { continue; }
        if (c->cells[i].position < n_keep + n_drop) {
            llmi_cells_free(c, i, mine);
        } else {
            c->cells[i].position -= n_drop;
        }
    }
    c->length[seq] -= n_drop;
    return GCUDA_STATUS_SUCCESS;
}

// ---- embeddings ----

enum { LLMI_POOL_NONE, LLMI_POOL_MEAN, LLMI_POOL_CLS, LLMI_POOL_LAST };

// One vector of length 1 of those of n tokens.
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
    const struct llmi_graph_key key = { s->n_batch, s->n_batch, s->n_batch, 1 };
    LLMI_TRY(llmi_use_graph(s, key));
    for (int32_t i = 0; i < s->n_batch; ++i) { s->chunk_positions[i] = i; }
    memset(s->masks[0], 0, (size_t) s->n_batch * (size_t) s->n_batch * sizeof *s->masks[0]);
    LLMI_TRY(llmi_set_input(s, s->build.in.tokens, s->tokens));
    LLMI_TRY(llmi_set_input(s, s->build.in.positions, s->chunk_positions));
    return llmi_set_input(s, s->build.in.mask[0], s->masks[0]);
}

static gcuda_status llmi_embed(struct llm_session * s, size_t n_tokens) {
    const bool is_encoder = (s->m->traits & LLMI_ENCODER) != 0;
    LLMI_TRY(is_encoder ? llmi_embed_begin(s) : llmi_chunk_begin(s, true));
    LLMI_TRY(gcuda_backend_graph_compute(s->backend, s->build.graph));
    return gcuda_backend_tensor_get(s->result, s->logits, 0, n_tokens * (size_t) s->m->params.n_embd * sizeof(float));
}

gcuda_status llm_embed(struct llm_session * s, const int32_t * tokens, size_t n_tokens, float * vector) {
    LLMI_TRY(llmi_check_seq(s, 0));
    if (n_tokens == 0 || n_tokens > (size_t) s->params.n_chunk || s->cells.n_used > 0) {
        return llmi_fail(GCUDA_STATUS_INVALID_ARGUMENT, "llm_embed: %zu tokens, at most %d at a time; %d cells of the cache are used, none may be", n_tokens,
            s->params.n_chunk, s->cells.n_used);
    }
    for (size_t i = 0; i < n_tokens; ++i) {
        if (!llmi_is_token(s->m, tokens[i])) { return llmi_fail(GCUDA_STATUS_INVALID_ARGUMENT, "token %zu is %d, the model has %d", i, tokens[i], s->m->vocab.n_tokens); }
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

struct llmi_state { // begins the bytes; then the cells, then keys and values of each layer
    char magic[8];
    int64_t n_layers, row_bytes, type, n_vocab; // of the model and the cache: must be equal
    int64_t n_cells;                            // that follow
    int32_t length[LLM_MAX_SEQS];
};

static struct llmi_state llmi_state_of(const struct llm_session * s) {
    struct llmi_state h;
    memset(&h, 0, sizeof h);
    memcpy(h.magic, "llm.h 1", 8);
    h.n_layers = s->m->params.n_layers;
    h.row_bytes = (int64_t) gcuda_row_size(s->params.kv_type, s->m->params.head * s->m->params.n_kv);
    h.type = s->params.kv_type;
    h.n_vocab = s->m->params.n_vocab;
    h.n_cells = llmi_cells_end(&s->cells);
    memcpy(h.length, s->cells.length, sizeof h.length);
    return h;
}

static size_t llmi_state_bytes(const struct llmi_state * h) {
    return sizeof *h + (size_t) h->n_cells * (sizeof(struct llmi_cell) + 2 * (size_t) h->n_layers * (size_t) h->row_bytes);
}

static gcuda_status llmi_check_state(const struct llm_session * s) {
    if ((s->m->traits & LLMI_ENCODER) == 0) { return llmi_check_seq(s, 0); }
    return llmi_fail(GCUDA_STATUS_UNSUPPORTED, "%s keeps no state", s->m->arch->name);
}

gcuda_status llm_state_save(struct llm_session * s, void * data, size_t capacity, size_t * n_bytes) {
    LLMI_TRY(llmi_check_state(s));
    const struct llmi_state h = llmi_state_of(s);
    *n_bytes = llmi_state_bytes(&h);
    if (data == NULL) { return GCUDA_STATUS_SUCCESS; }
    if (*n_bytes > capacity) { return llmi_fail(GCUDA_STATUS_INVALID_ARGUMENT, "the state has %zu bytes, there is room for %zu", *n_bytes, capacity); }
    const size_t cells = (size_t) h.n_cells * sizeof(struct llmi_cell), rows = (size_t) (h.n_cells * h.row_bytes);
    char * at = (char *) data;
    memcpy(at, &h, sizeof h);
    memcpy(at + sizeof h, s->cells.cells, cells);
    at += sizeof h + cells;
    for (int64_t i = 0; i < h.n_layers && rows > 0; ++i, at += 2 * rows) {
        LLMI_TRY(gcuda_backend_tensor_get(s->build.k_cache[i], at, 0, rows));
        LLMI_TRY(gcuda_backend_tensor_get(s->build.v_cache[i], at + rows, 0, rows));
    }
    return GCUDA_STATUS_SUCCESS;
}

static gcuda_status llmi_check_header(const struct llm_session * s, const struct llmi_state * h, size_t n_bytes) {
    const struct llmi_state want = llmi_state_of(s);
    if (memcmp(h->magic, want.magic, sizeof want.magic) != 0) { return llmi_fail(GCUDA_STATUS_INVALID_DATA, "these bytes are no saved state"); }
    if (h->n_layers != want.n_layers || h->row_bytes != want.row_bytes || h->type != want.type || h->n_vocab != want.n_vocab) {
        return llmi_fail(GCUDA_STATUS_INVALID_DATA, "a state of another model or cache type: %lld layers of %lld bytes, here %lld of %lld", (long long) h->n_layers,
            (long long) h->row_bytes, (long long) want.n_layers, (long long) want.row_bytes);
    }
    if (h->n_cells < 0 || h->n_cells > s->cells.n) {
        return llmi_fail(GCUDA_STATUS_INVALID_DATA, "the state has %lld cells, the session %d", (long long) h->n_cells, s->cells.n);
    }
    if (llmi_state_bytes(h) == n_bytes) { return GCUDA_STATUS_SUCCESS; }
    return llmi_fail(GCUDA_STATUS_INVALID_DATA, "a state of %zu bytes, its head says %zu", n_bytes, llmi_state_bytes(h));
}

// Whether the cells hold the positions 0 ... length - 1 of each sequence once, and known tokens. Counts the used ones.
static gcuda_status llmi_check_cells(struct llm_session * s) {
    int64_t n[LLM_MAX_SEQS], sum[LLM_MAX_SEQS];
    struct llmi_cells * c = &s->cells;
    memset(n, 0, sizeof n);
    memset(sum, 0, sizeof sum);
    for (int32_t i = 0; i < c->n; ++i) {
        const struct llmi_cell * cell = &c->cells[i];
        c->n_used += cell->seqs != 0;
        if (cell->seqs != 0 && !llmi_is_token(s->m, cell->token)) { return llmi_fail(GCUDA_STATUS_INVALID_DATA, "cell %d of the state has token %d", i, cell->token); }
        for (int seq = 0; seq < LLM_MAX_SEQS && cell->seqs >> seq != 0; ++seq) {
            if ((cell->seqs >> seq & 1) == 0) { continue; }
            ++n[seq];
            sum[seq] += cell->position;
            if (seq >= s->params.n_seqs || cell->position < 0 || cell->position >= c->length[seq]) {
                return llmi_fail(GCUDA_STATUS_INVALID_DATA, "cell %d of the state has position %d of sequence %d", i, cell->position, seq);
            }
        }
    }
    for (int seq = 0; seq < LLM_MAX_SEQS; ++seq) {
        const int64_t length = c->length[seq];
        if (n[seq] != length || 2 * sum[seq] != length * (length - 1)) {
            return llmi_fail(GCUDA_STATUS_INVALID_DATA, "sequence %d of the state has %d positions in %lld cells", seq, c->length[seq], (long long) n[seq]);
        }
    }
    return GCUDA_STATUS_SUCCESS;
}

static void llmi_clear_cells(struct llm_session * s) {
    struct llmi_cells * c = &s->cells;
    memset(c->cells, 0, (size_t) c->n * sizeof *c->cells);
    memset(c->length, 0, sizeof c->length);
    c->n_used = c->head = 0;
}

static gcuda_status llmi_restore(struct llm_session * s, const struct llmi_state * h, const char * at) {
    const size_t cells = (size_t) h->n_cells * sizeof(struct llmi_cell), rows = (size_t) (h->n_cells * h->row_bytes);
    memcpy(s->cells.cells, at, cells);
    memcpy(s->cells.length, h->length, sizeof h->length);
    LLMI_TRY(llmi_check_cells(s));
    at += cells;
    for (int64_t i = 0; i < h->n_layers && rows > 0; ++i, at += 2 * rows) {
        LLMI_TRY(gcuda_backend_tensor_set(s->build.k_cache[i], at, 0, rows));
        LLMI_TRY(gcuda_backend_tensor_set(s->build.v_cache[i], at + rows, 0, rows));
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
    if (!(p->temperature >= 0.0f && p->top_p >= 0.0f && p->top_p <= 1.0f && p->min_p >= 0.0f && p->min_p <= 1.0f && p->repeat_penalty >= 0.0f)
        || p->top_k < 0 || p->top_k > LLM_MAX_TOP_K || p->repeat_last < 0 || p->repeat_last > LLM_MAX_PENALTY) {
        return llmi_fail(GCUDA_STATUS_INVALID_ARGUMENT, "sampling: temperature %g, top-k %d (at most %d), top-p %g, min-p %g, repetition penalty %g over %d tokens (at most %d)",
            (double) p->temperature, p->top_k, (int) LLM_MAX_TOP_K, (double) p->top_p, (double) p->min_p, (double) p->repeat_penalty, p->repeat_last, (int) LLM_MAX_PENALTY);
    }
    if (p->repeat_last == 0) { p->repeat_last = 64; }
    if (p->repeat_penalty == 0.0f) { p->repeat_penalty = 1.0f; }
    uint64_t x = p->seed;
    for (int i = 0; i < 4; ++i) { sampler->random[i] = llmi_splitmix(&x); }
    return GCUDA_STATUS_SUCCESS;
}

void llm_sampler_accept(struct llm_sampler * sampler, int32_t token) {
    sampler->last[sampler->next] = token;
    sampler->next = (sampler->next + 1) % sampler->params.repeat_last;
    sampler->n_last = (int32_t) llmi_min(sampler->n_last + 1, sampler->params.repeat_last);
}

// Lower logits for tokens seen lately, each once. `before` gets the logits as they were, in the order of sampler->last.
static void llmi_penalize(const struct llm_sampler * sampler, float * logits, int32_t n_vocab, float * before) {
    const float penalty = sampler->params.repeat_penalty;
    for (int32_t i = 0; i < sampler->n_last; ++i) { before[i] = sampler->last[i] >= 0 && sampler->last[i] < n_vocab ? logits[sampler->last[i]] : 0.0f; }
    for (int32_t i = 0; i < sampler->n_last; ++i) {
        const int32_t token = sampler->last[i];
        if (token < 0 || token >= n_vocab) { continue; }
        logits[token] = before[i] > 0.0f ? before[i] / penalty : before[i] * penalty; // of the same token twice: the same again
    }
}
static void llmi_unpenalize(const struct llm_sampler * sampler, float * logits, int32_t n_vocab, const float * before) {
    for (int32_t i = 0; i < sampler->n_last; ++i) {
        if (sampler->last[i] >= 0 && sampler->last[i] < n_vocab) { logits[sampler->last[i]] = before[i]; }
    }
}

// The largest logit, of equal ones the first. INVALID_DATA: a NaN, or nothing above -inf.
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
    if (is_nan) { return llmi_fail(GCUDA_STATUS_INVALID_DATA, "logits are not numbers: the model's weights are damaged, or a value was too large"); }
    return best->token != LLMI_NONE ? GCUDA_STATUS_SUCCESS : llmi_fail(GCUDA_STATUS_INVALID_DATA, "all logits are -infinity");
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

// The k best, in no order. k 0: all.
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

// Sorts the best ones to the end of the array, as far as top-p and min-p let them in. Returns how many.
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
    for (int32_t i = n; i-- > 0;) { // from the best one on
        so_far += exp(((double) picks[i].logit - (double) best) / t);
        if (so_far >= u && picks[i].logit > -INFINITY) { return picks[i].token; }
    }
    return picks[n - 1].token;
}

static gcuda_status llmi_choose(struct llm_session * s, const float * logits, struct llm_sampler * sampler, int32_t * token) {
    const struct llm_sampler_params * p = &sampler->params;
    const int32_t n_vocab = s->m->vocab.n_tokens;
    struct llmi_pick best;
    LLMI_TRY(llmi_best(logits, n_vocab, &best));
    *token = best.token;
    if (p->temperature == 0.0f) { return GCUDA_STATUS_SUCCESS; }
    const int32_t n = llmi_collect(logits, n_vocab, p->top_k, s->picks);
    const bool has_filter = p->top_k > 0 || p->min_p > 0.0f || (p->top_p > 0.0f && p->top_p < 1.0f);
    const int32_t n_kept = has_filter ? llmi_filter(p, s->picks, n, best.logit) : n;
    *token = llmi_draw(sampler, s->picks + n - n_kept, n_kept, best.logit);
    return GCUDA_STATUS_SUCCESS;
}

gcuda_status llm_sample(struct llm_session * s, int32_t seq, struct llm_sampler * sampler, int32_t * token) {
    float before[LLM_MAX_PENALTY];
    float * logits = (float *) (uintptr_t) llm_seq_logits(s, seq); // of the session, which is not const
    const int32_t n_vocab = s->m->vocab.n_tokens;
    if (logits == NULL) { return llmi_fail(GCUDA_STATUS_INVALID_ARGUMENT, "there are no logits of sequence %d: evaluate tokens first", seq); }
    const bool is_penalized = sampler->params.repeat_penalty != 1.0f;
    if (is_penalized) { llmi_penalize(sampler, logits, n_vocab, before); }
    const gcuda_status st = llmi_choose(s, logits, sampler, token);
    if (is_penalized) { llmi_unpenalize(sampler, logits, n_vocab, before); }
    if (st == GCUDA_STATUS_SUCCESS) { llm_sampler_accept(sampler, *token); }
    return st;
}

#endif // LLM_IMPLEMENTATION
