// Talks: runs a language model from a GGUF file on the CPU or a GPU. Answers a prompt, chats, measures speed and
// perplexity, finds the lines of a text that are nearest to a question. The library is llm.h; this file is what a
// program around it looks like.
//
//   cc -O2 -I. examples/llm.c -o llm -pthread -lm -ldl && ./llm --help
//   ./llm -m model.gguf -p "Why is the sky blue?"
//
// With CUDA: as README.md says of examples/digits.c. `make run` fetches a small model first.
#define GCUDA_IMPLEMENTATION
#include "gcuda.h"

#define LLM_IMPLEMENTATION
#include "llm.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#ifdef _WIN32
#include <io.h>
#define is_terminal(file) (_isatty(_fileno(file)) != 0)
#else
#include <poll.h>
#include <unistd.h>
#define is_terminal(file) (isatty(fileno(file)) != 0)
#endif

#define TRY(call)                                                      \
    do {                                                               \
        const gcuda_status try_status = (call);                        \
        if (try_status != GCUDA_STATUS_SUCCESS) { return try_status; } \
    } while (0)

static gcuda_status fail(gcuda_status status, const char * fmt, ...) {
    char text[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    return gcuda_set_last_error(status, text);
}

static void * no_null(void * p, gcuda_status * st) { // of malloc and realloc
    *st = p ? GCUDA_STATUS_SUCCESS : fail(GCUDA_STATUS_ALLOC_FAILED, "out of memory");
    return p;
}

// ---- options ----

struct options {
    const char *command, *model, *prompt, *system, *file, *backend, *kv, *depths;
    int n_tokens, ctx, gpus, threads, chunk, repeat_last, top_k, n_prompt, repetitions, n_best;
    float temperature, top_p, min_p, repeat_penalty;
    long long seed;
    bool raw, json, exact, special, quiet, help, profile;
};

enum kind { TEXT, INT, LONG, FLOAT, FLAG };
#define AT(field) offsetof(struct options, field)
static const struct option_row {
    const char *name, *short_name, *value;
    enum kind kind;
    size_t at;
    const char * help;
} option_rows[] = {
    { "--model", "-m", "FILE", TEXT, AT(model), "the model, a GGUF file" },
    { "--prompt", "-p", "TEXT", TEXT, AT(prompt), "what to ask, or to go on from; -: standard input" },
    { "--system", "-s", "TEXT", TEXT, AT(system), "how to behave, before the first question" },
    { "--tokens", "-n", "N", INT, AT(n_tokens), "most tokens of an answer (512); perplexity: of text" },
    { "--raw", NULL, NULL, FLAG, AT(raw), "go on from the prompt, without the chat template" },
    { "--temp", NULL, "X", FLOAT, AT(temperature), "temperature (0.7); 0: always the most probable token" },
    { "--top-k", NULL, "N", INT, AT(top_k), "choose among the N most probable tokens (40; 0: all)" },
    { "--top-p", NULL, "X", FLOAT, AT(top_p), "... the fewest with this probability together (0.95)" },
    { "--min-p", NULL, "X", FLOAT, AT(min_p), "... those X times as probable as the best (0.05)" },
    { "--repeat-penalty", NULL, "X", FLOAT, AT(repeat_penalty), "make tokens seen lately less probable (1.1; 1: off)" },
    { "--repeat-last", NULL, "N", INT, AT(repeat_last), "how many tokens are \"lately\" (64)" },
    { "--seed", NULL, "N", LONG, AT(seed), "same seed, same answer (1); 0: another each time" },
    { "--backend", NULL, "NAME", TEXT, AT(backend), "CPU, CUDA0, ... (the first GPU, else the CPU)" },
    { "--gpus", NULL, "N", INT, AT(gpus), "weights on the first N GPUs, the rest on the CPU" },
    { "--ctx", NULL, "N", INT, AT(ctx), "tokens to look back on (4096, or as trained)" },
    { "--kv", NULL, "TYPE", TEXT, AT(kv), "cache of keys, values: f16, bf16, q8_0, q4_0, f32" },
    { "--threads", "-t", "N", INT, AT(threads), "threads on the CPU (all processors)" },
    { "--chunk", NULL, "N", INT, AT(chunk), "tokens of a prompt at a time (256; GPU: up to 2048)" },
    { "--exact", NULL, NULL, FLAG, AT(exact), "no rounding to 8 bits in products: slower" },
    { "--depths", NULL, "LIST", TEXT, AT(depths), "bench: tokens in the context before it begins (0)" },
    { "--n-prompt", NULL, "N", INT, AT(n_prompt), "bench: tokens of the prompt (256)" },
    { "--repeat", NULL, "N", INT, AT(repetitions), "bench: how often (3)" },
    { "--best", NULL, "N", INT, AT(n_best), "embed: lines to show (5)" },
    { "--json", NULL, NULL, FLAG, AT(json), "bench: results as JSON" },
    { "--profile", NULL, NULL, FLAG, AT(profile), "bench (no --json): host time, time of each node" },
    { "--special", NULL, NULL, FLAG, AT(special), "tokenize: names of control tokens are those tokens" },
    { "--quiet", "-q", NULL, FLAG, AT(quiet), "no progress, no numbers after an answer" },
    { "--help", "-h", NULL, FLAG, AT(help), "this text" },
};
enum { N_OPTIONS = sizeof option_rows / sizeof *option_rows };

static const struct {
    const char *name, *help;
} commands[] = {
    { "run", "answer the prompt (without a command too)" },
    { "chat", "answer what is typed, and remember it" },
    { "bench", "speed of prompts and of generation" },
    { "perplexity", "perplexity FILE: how well the model foresees a text" },
    { "embed", "embed FILE: the lines of a text nearest to the prompt" },
    { "tokenize", "the tokens of the prompt" },
    { "info", "what the file says of the model" },
};
enum { N_COMMANDS = sizeof commands / sizeof *commands };

static void print_help(void) {
    printf("llm: runs language models from GGUF files\n\n"
           "  llm -m FILE -p \"Why is the sky blue?\"\n  llm chat -m FILE\n\ncommands\n");
    for (int i = 0; i < N_COMMANDS; ++i) { printf("  %-18s %s\n", commands[i].name, commands[i].help); }
    printf("\noptions (default)\n");
    for (int i = 0; i < N_OPTIONS; ++i) {
        const struct option_row * r = &option_rows[i];
        char left[48];
        snprintf(left, sizeof left, "%s%s%s %s", r->short_name ? r->short_name : "", r->short_name ? ", " : "", r->name,
            r->value ? r->value : "");
        printf("  %-23s %s\n", left, r->help);
    }
}

static gcuda_status set_option(struct options * o, const struct option_row * r, const char * value) {
    char * end = (char *) (uintptr_t) value;
    void * at = (char *) o + r->at;
    errno = 0;
    switch (r->kind) {
        case TEXT: *(const char **) at = value; return GCUDA_STATUS_SUCCESS;
        case FLAG: *(bool *) at = true; return GCUDA_STATUS_SUCCESS;
        case FLOAT: *(float *) at = strtof(value, &end); break;
        case LONG: *(long long *) at = strtoll(value, &end, 10); break;
        default: {
            const long n = strtol(value, &end, 10);
            if (n < 0 || n > INT32_MAX) { errno = ERANGE; }
            *(int *) at = (int) n;
        }
    }
    if (end != value && *end == '\0' && errno == 0) { return GCUDA_STATUS_SUCCESS; }
    return fail(GCUDA_STATUS_INVALID_ARGUMENT, "%s wants a %s, not '%s'", r->name,
        r->kind == INT ? "whole number from 0 on" : "number", value);
}

static const struct option_row * find_option(const char * name) {
    for (int i = 0; i < N_OPTIONS; ++i) {
        const struct option_row * r = &option_rows[i];
        if (strcmp(name, r->name) == 0 || (r->short_name && strcmp(name, r->short_name) == 0)) { return r; }
    }
    return NULL;
}

static gcuda_status take_word(struct options * o, const char * word) {
    if (o->command == NULL && strcmp(word, "help") == 0) {
        o->help = true;
        return GCUDA_STATUS_SUCCESS;
    }
    for (int i = 0; o->command == NULL && i < N_COMMANDS; ++i) {
        if (strcmp(word, commands[i].name) == 0) {
            o->command = commands[i].name;
            return GCUDA_STATUS_SUCCESS;
        }
    }
    const bool wants_file =
        o->command != NULL && (strcmp(o->command, "perplexity") == 0 || strcmp(o->command, "embed") == 0);
    if (!wants_file || o->file != NULL) {
        return fail(
            GCUDA_STATUS_INVALID_ARGUMENT, "'%s' is no command and no option: a text follows -p; see llm --help", word);
    }
    o->file = word;
    return GCUDA_STATUS_SUCCESS;
}

static gcuda_status parse(struct options * o, int argc, char ** argv) {
    memset(o, 0, sizeof *o);
    o->temperature = 0.7f;
    o->top_k = 40;
    o->top_p = 0.95f;
    o->min_p = 0.05f;
    o->repeat_penalty = 1.1f;
    o->seed = 1;
    o->n_prompt = 256;
    o->repetitions = 3;
    o->n_best = 5;
    for (int i = 1; i < argc; ++i) {
        const struct option_row * r = find_option(argv[i]);
        if (r == NULL && argv[i][0] == '-' && argv[i][1] != '\0') {
            return fail(GCUDA_STATUS_INVALID_ARGUMENT, "there is no option '%s': see llm --help", argv[i]);
        }
        if (r == NULL) {
            TRY(take_word(o, argv[i]));
            continue;
        }
        if (r->kind != FLAG && i + 1 == argc) {
            return fail(GCUDA_STATUS_INVALID_ARGUMENT, "%s wants a value: %s %s", argv[i], argv[i], r->value);
        }
        TRY(set_option(o, r, r->kind == FLAG ? "" : argv[++i]));
    }
    return GCUDA_STATUS_SUCCESS;
}

// ---- stopping: Ctrl-C ends the answer; the second one in a row, while nothing is answered, the program ----

static volatile sig_atomic_t is_stopped;
static void on_interrupt(int number) {
    (void) number;
    is_stopped = 1;
}
static void catch_interrupts(void) {
#ifdef _WIN32
    signal(SIGINT, on_interrupt);
#else
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_interrupt; // reading a line is interrupted too: no SA_RESTART
    sigaction(SIGINT, &action, NULL);
#endif
}

// ---- the program's state ----

struct app {
    struct options o;
    struct llm_model * model;
    struct llm_session * session;
    struct llm_sampler sampler;
    struct llm_info info;
    bool has_colour, has_bar; // the standard output, the error output is a terminal
    const char * doing;       // what the bar is about; NULL: no bar
    int last_percent;
};

static const char * style(const struct app * a, const char * code) { return a->has_colour ? code : ""; }
#define BOLD "\x1b[1m"
#define DIM "\x1b[2m"
#define PLAIN "\x1b[0m"

static void clear_bar(struct app * a) {
    if (a->has_bar && a->last_percent >= 0) { fprintf(stderr, "\r%40s\r", ""); }
    a->last_percent = -1;
    a->doing = NULL;
}

static bool on_progress(void * user, float share) {
    struct app * a = (struct app *) user;
    const int percent = (int) (100.0f * share);
    if (a->has_bar && a->doing != NULL && percent > 0 &&
        percent != a->last_percent) { // 0: the first chunk is not done yet
        a->last_percent = percent;
        fprintf(stderr, "\r%s %3d %% ", a->doing, percent);
        fflush(stderr);
    }
    return !is_stopped;
}

static void on_log(enum gcuda_log_level level, const char * text, void * user) {
    (void) user;
    fprintf(stderr, "%s: %s\n", level >= GCUDA_LOG_LEVEL_ERROR ? "error" : "warning", text);
}

static int n_processors(void) {
#ifdef _SC_NPROCESSORS_ONLN
    const long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 && n <= GCUDA_MAX_N_THREADS ? (int) n : 0;
#else
    return 0;
#endif
}

static gcuda_status load_model(struct app * a) {
    struct llm_model_params p;
    memset(&p, 0, sizeof p);
    if (a->o.model == NULL) {
        return fail(GCUDA_STATUS_INVALID_ARGUMENT, "no model: -m FILE.gguf names one. `make run` fetches a small one");
    }
    p.backend = a->o.backend;
    p.n_gpus = a->o.gpus;
    p.progress = on_progress;
    p.progress_user = a;
    p.log = on_log;
    a->doing = "loading";
    const gcuda_status st = llm_model_load(a->o.model, &p, &a->model);
    clear_bar(a);
    TRY(st);
    a->info = llm_model_info(a->model);
    return st;
}

static gcuda_status kv_type(const char * name, struct llm_session_params * p) {
    static const struct {
        const char * name;
        enum gcuda_type type;
    } rows[] = {
        { "f16", GCUDA_TYPE_F16 },
        { "bf16", GCUDA_TYPE_BF16 },
        { "f32", GCUDA_TYPE_F32 },
        { "q8_0", GCUDA_TYPE_Q8_0 },
        { "q4_0", GCUDA_TYPE_Q4_0 },
    };
    for (size_t i = 0; name != NULL && i < sizeof rows / sizeof *rows; ++i) {
        if (strcmp(name, rows[i].name) != 0) { continue; }
        p->kv_type = rows[i].type;
        p->kv_is_set = true;
        return GCUDA_STATUS_SUCCESS;
    }
    return name == NULL
               ? GCUDA_STATUS_SUCCESS
               : fail(GCUDA_STATUS_INVALID_ARGUMENT, "--kv %s: the cache can be f16, bf16, q8_0, q4_0 or f32", name);
}

// On a GPU only the tokens that the sampler can choose leave the device; 0: all.
static int n_best_of(const struct app * a) {
    const int n_last = a->sampler.params.repeat_penalty != 1.0f ? a->sampler.params.repeat_last : 0;
    const int n_best = (a->o.temperature == 0.0f ? 1 : a->sampler.params.top_k) + n_last;
    const bool is_possible =
        (a->o.temperature == 0.0f || a->sampler.params.top_k > 0) && a->sampler.params.repeat_penalty >= 1.0f;
    return is_possible && n_best < a->info.n_vocab && strcmp(a->info.backend, "CPU") != 0 ? n_best : 0;
}

static gcuda_status make_session(struct app * a, int n_outputs, int n_best) {
    struct llm_session_params p;
    memset(&p, 0, sizeof p);
    TRY(kv_type(a->o.kv, &p));
    p.n_ctx = a->o.ctx;
    p.n_chunk = a->o.chunk;
    p.n_outputs = n_outputs;
    p.n_threads = a->o.threads > 0 ? a->o.threads : n_processors();
    p.exact = a->o.exact;
    p.n_best = n_best;
    p.progress = on_progress;
    p.progress_user = a;
    TRY(llm_session_new(a->model, &p, &a->session));
    if (a->info.n_ctx_train < a->o.ctx) {
        fprintf(stderr, "warning: the model was trained for %d tokens, --ctx is %d\n", a->info.n_ctx_train, a->o.ctx);
    }
    return GCUDA_STATUS_SUCCESS;
}

static gcuda_status make_sampler(struct app * a) {
    const struct options * o = &a->o;
    const struct llm_sampler_params p = { o->temperature, o->top_k, o->top_p, o->min_p, o->repeat_penalty,
        o->repeat_last, o->seed != 0 ? (uint64_t) o->seed : (uint64_t) gcuda_time_us() ^ (uint64_t) time(NULL) << 20 };
    return llm_sampler_init(&a->sampler, &p);
}

// ---- texts ----

struct text {
    char * data;
    size_t n, capacity;
};

static gcuda_status append(struct text * t, const char * data, size_t n) {
    gcuda_status st = GCUDA_STATUS_SUCCESS;
    if (t->n + n + 1 > t->capacity) {
        const size_t capacity = 2 * (t->n + n + 1);
        char * grown = (char *) no_null(realloc(t->data, capacity), &st);
        TRY(st);
        t->data = grown;
        t->capacity = capacity;
    }
    memcpy(t->data + t->n, data, n);
    t->n += n;
    t->data[t->n] = '\0';
    return GCUDA_STATUS_SUCCESS;
}

static gcuda_status read_all(FILE * file, const char * name, struct text * t) {
    char part[4096];
    size_t n;
    TRY(append(t, "", 0));
    while ((n = fread(part, 1, sizeof part, file)) > 0) { TRY(append(t, part, n)); }
    if (is_stopped) { return fail(GCUDA_STATUS_ABORTED, "stopped"); } // reading may have been interrupted
    return ferror(file) ? fail(GCUDA_STATUS_IO, "%s: %s", name, strerror(errno)) : GCUDA_STATUS_SUCCESS;
}

static gcuda_status read_file(const char * path, struct text * t) {
    FILE * file = path ? fopen(path, "rb") : NULL;
    if (file == NULL) {
        return path ? fail(GCUDA_STATUS_IO, "%s: %s", path, strerror(errno))
                    : fail(GCUDA_STATUS_INVALID_ARGUMENT, "the command wants a text file after its name");
    }
    const gcuda_status st = read_all(file, path, t);
    fclose(file);
    return st;
}

// The prompt of -p, or of the standard input.
static gcuda_status read_prompt(const struct app * a, struct text * t) {
    if (a->o.prompt != NULL && strcmp(a->o.prompt, "-") != 0) { return append(t, a->o.prompt, strlen(a->o.prompt)); }
    if (a->o.prompt == NULL && is_terminal(stdin)) {
        return fail(GCUDA_STATUS_INVALID_ARGUMENT, "no prompt: -p \"TEXT\", or llm chat");
    }
    TRY(read_all(stdin, "standard input", t));
    while (a->o.prompt == NULL && t->n > 0 && t->data[t->n - 1] == '\n') { t->data[--t->n] = '\0'; }
    return GCUDA_STATUS_SUCCESS;
}

// A message of a chat ends at a zero byte, as texts in C do: what follows one would be left out without a word.
static gcuda_status check_message(const struct text * t) {
    const char * zero = (const char *) memchr(t->data, 0, t->n);
    return zero == NULL ? GCUDA_STATUS_SUCCESS
                        : fail(GCUDA_STATUS_INVALID_ARGUMENT,
                              "byte %zu of the text is a zero byte, which no message of a chat can hold",
                              (size_t) (zero - t->data));
}

static gcuda_status read_question(const struct app * a, struct text * t) {
    TRY(read_prompt(a, t));
    return t->n > 0 ? GCUDA_STATUS_SUCCESS : fail(GCUDA_STATUS_INVALID_ARGUMENT, "the prompt is empty: -p \"TEXT\"");
}

// ---- answering ----

struct tokens {
    int32_t * data;
    size_t n;
};

static gcuda_status tokens_of(const struct app * a, const char * text, size_t n, int flags, struct tokens * t) {
    gcuda_status st;
    TRY(llm_tokenize(a->model, text, n, flags, NULL, 0, &t->n));
    t->data = (int32_t *) no_null(malloc((t->n + 1) * sizeof(int32_t)), &st);
    TRY(st);
    return llm_tokenize(a->model, text, n, flags, t->data, t->n, &t->n);
}

static gcuda_status tokens_of_chat(
    const struct app * a, const struct llm_message * messages, size_t n, struct tokens * t) {
    gcuda_status st;
    TRY(llm_chat_tokenize(a->model, messages, n, true, NULL, 0, &t->n));
    t->data = (int32_t *) no_null(malloc((t->n + 1) * sizeof(int32_t)), &st);
    TRY(st);
    return llm_chat_tokenize(a->model, messages, n, true, t->data, t->n, &t->n);
}

// Whether all that was printed could be written: a full disk, a closed output.
static gcuda_status check_output(void) {
    return fflush(stdout) == 0 && !ferror(stdout)
               ? GCUDA_STATUS_SUCCESS
               : fail(GCUDA_STATUS_IO, "the output cannot be written: %s", strerror(errno));
}

// Prints what is whole of the text that has come, and keeps the rest: a character may be spread over tokens.
static void print_whole(struct text * pending, bool is_end) {
    const size_t n = is_end ? pending->n : llm_utf8_whole(pending->data, pending->n);
    fwrite(pending->data, 1, n, stdout);
    fflush(stdout);
    memmove(pending->data, pending->data + n, pending->n - n);
    pending->n -= n;
}

struct speed {
    size_t n_prompt, n_answer;
    int64_t prompt_us, answer_us;
    bool at_limit; // the answer ended at 512 tokens, and -n was not given
};

static void print_speed(const struct app * a, const struct speed * s) {
    if (a->o.quiet) { return; }
    const bool is_dim = a->has_bar && a->has_colour;
    const double prompt = 1e6 * (double) s->n_prompt / (double) (s->prompt_us + 1),
                 answer = 1e6 * (double) s->n_answer / (double) (s->answer_us + 1);
    fprintf(stderr, "%s[prompt: %zu tokens, %.1f a second; answer: %zu tokens%s, %.1f a second; %s]%s\n",
        is_dim ? DIM : "", s->n_prompt, prompt, s->n_answer, s->at_limit ? " (the most without -n)" : "", answer,
        a->info.backend, is_dim ? PLAIN : "");
}

// gpt-oss thinks in one channel and answers in another: its marks are shown, and of the answer the last channel is
// remembered.
static bool shows_marks(const struct app * a) {
    return a->info.template_name != NULL && strcmp(a->info.template_name, "gpt-oss") == 0;
}

static void keep_final(struct text * answer) {
    static const char mark[] = "<|channel|>final<|message|>";
    for (char * at = strstr(answer->data, mark); at != NULL; at = strstr(answer->data, mark)) {
        at += sizeof mark - 1;
        answer->n = strlen(at);
        memmove(answer->data, at, answer->n + 1);
    }
}

// One token after the other until the model ends, the limit, a full context or Ctrl-C. The text goes to stdout and to
// answer.
static gcuda_status generate(struct app * a, struct text * answer, struct speed * s) {
    struct text pending = { NULL, 0, 0 };
    gcuda_status st = append(&pending, "", 0);
    const int limit = a->o.n_tokens > 0 ? a->o.n_tokens : 512;
    int32_t token;
    size_t n;
    const int64_t begin = gcuda_time_us();
    while (st == GCUDA_STATUS_SUCCESS && s->n_answer < (size_t) limit && !is_stopped) {
        st = llm_sample(a->session, 0, &a->sampler, &token);
        if (st != GCUDA_STATUS_SUCCESS || llm_token_is_end(a->model, token)) { break; }
        const char * piece = llm_token_piece(a->model, token, &n);
        if (llm_token_is_special(a->model, token) && !shows_marks(a)) { n = 0; }
        if (st == GCUDA_STATUS_SUCCESS) { st = append(&pending, piece, n); }
        if (st == GCUDA_STATUS_SUCCESS) { st = append(answer, piece, n); }
        print_whole(&pending, false);
        if (st == GCUDA_STATUS_SUCCESS) { st = check_output(); }
        ++s->n_answer;
        if (llm_n_free(a->session) == 0) {
            fprintf(stderr, "\n[the context of %d tokens is full: --ctx makes it longer]", llm_n_ctx(a->session));
            break;
        }
        if (st == GCUDA_STATUS_SUCCESS) { st = llm_eval_tokens(a->session, 0, &token, 1); }
    }
    s->at_limit = a->o.n_tokens == 0 && s->n_answer == (size_t) limit;
    s->answer_us += gcuda_time_us() - begin;
    if (shows_marks(a) && answer->data != NULL) { keep_final(answer); }
    print_whole(&pending, true);
    free(pending.data);
    return st;
}

// Evaluates what the session does not hold of the prompt yet, then answers. Ctrl-C is no failure.
static gcuda_status answer_tokens(struct app * a, const struct tokens * t, struct text * answer) {
    struct speed s = { 0, 0, 0, 0, false };
    size_t n_kept = 0;
    TRY(llm_seq_keep_prefix(a->session, 0, t->data, t->n, &n_kept));
    if (t->n - n_kept > (size_t) llm_n_free(a->session)) {
        return fail(GCUDA_STATUS_INVALID_ARGUMENT, "the prompt has %zu tokens, the context %d: --ctx N makes it longer",
            t->n, llm_n_ctx(a->session));
    }
    a->doing = "reading";
    const int64_t begin = gcuda_time_us();
    gcuda_status st = llm_eval_tokens(a->session, 0, t->data + n_kept, t->n - n_kept);
    s.prompt_us = gcuda_time_us() - begin;
    s.n_prompt = t->n - n_kept;
    clear_bar(a);
    if (st == GCUDA_STATUS_SUCCESS) { st = generate(a, answer, &s); }
    printf("\n");
    fflush(stdout);
    if (st == GCUDA_STATUS_ABORTED && is_stopped) { st = GCUDA_STATUS_SUCCESS; }
    if (st == GCUDA_STATUS_SUCCESS) { print_speed(a, &s); }
    return st;
}

static gcuda_status command_run(struct app * a) {
    struct text prompt = { NULL, 0, 0 }, answer = { NULL, 0, 0 };
    struct tokens t = { NULL, 0 };
    const bool is_chat = !a->o.raw && a->info.template_name != NULL;
    gcuda_status st = is_chat ? read_question(a, &prompt) : read_prompt(a, &prompt);
    if (st == GCUDA_STATUS_SUCCESS && is_chat) { st = check_message(&prompt); }
    if (st == GCUDA_STATUS_SUCCESS) { st = make_session(a, 1, n_best_of(a)); }
    const struct llm_message messages[] = { { "system", a->o.system }, { "user", prompt.data } };
    const size_t n_skipped = a->o.system ? 0 : 1;
    if (st == GCUDA_STATUS_SUCCESS && is_chat) {
        st = tokens_of_chat(a, messages + n_skipped, 2 - n_skipped, &t);
    } else if (st == GCUDA_STATUS_SUCCESS) {
        st = tokens_of(a, prompt.data, prompt.n, LLM_ADD_SPECIAL, &t);
        fwrite(prompt.data, 1, prompt.n, stdout);
    }
    if (st == GCUDA_STATUS_SUCCESS) { st = answer_tokens(a, &t, &answer); }
    free(t.data);
    free(answer.data);
    free(prompt.data);
    return st;
}

// ---- chat ----

struct chat {
    struct llm_message * messages;
    size_t n, capacity;
};

// Takes the text over, also on failure.
static gcuda_status add_message(struct chat * c, const char * role, char * text) {
    gcuda_status st = GCUDA_STATUS_SUCCESS;
    if (c->n == c->capacity) {
        const size_t capacity = 2 * c->capacity + 8;
        struct llm_message * grown =
            (struct llm_message *) no_null(realloc(c->messages, capacity * sizeof *grown), &st);
        if (st != GCUDA_STATUS_SUCCESS) {
            free(text);
            return st;
        }
        c->messages = grown;
        c->capacity = capacity;
    }
    c->messages[c->n].role = role;
    c->messages[c->n++].content = text;
    return st;
}

static void drop_messages(struct chat * c, size_t first, size_t n) {
    for (size_t i = first; i < first + n; ++i) { free((void *) (uintptr_t) c->messages[i].content); }
    for (size_t i = first + n; i < c->n; ++i) { c->messages[i - n] = c->messages[i]; }
    c->n -= n;
}

// Whether the question, which is the last message, has room in the context without the chat before it.
static gcuda_status check_question(const struct app * a, const struct chat * c, size_t first) {
    struct tokens t = { NULL, 0 };
    struct llm_message alone[2] = { c->messages[0], c->messages[c->n - 1] };
    TRY(tokens_of_chat(a, alone + (1 - first), 1 + first, &t));
    free(t.data);
    return t.n <= (size_t) llm_n_ctx(a->session)
               ? GCUDA_STATUS_SUCCESS
               : fail(GCUDA_STATUS_INVALID_ARGUMENT,
                     "the question has %zu tokens, the context %d: --ctx N makes it longer", t.n,
                     llm_n_ctx(a->session));
}

// The tokens of the whole chat. Where they leave no room for an answer, the oldest question and its answer are
// forgotten.
static gcuda_status fit_chat(struct app * a, struct chat * c, struct tokens * t) {
    const size_t room = (size_t) llm_n_ctx(a->session) - (size_t) llm_n_ctx(a->session) / 4;
    const size_t first = c->n > 0 && strcmp(c->messages[0].role, "system") == 0 ? 1 : 0;
    TRY(check_question(a, c, first));
    for (;;) {
        free(t->data);
        t->data = NULL;
        TRY(tokens_of_chat(a, c->messages, c->n, t));
        if (t->n <= room || c->n < first + 3) { return GCUDA_STATUS_SUCCESS; }
        fprintf(stderr, "[the context is full: the oldest question and its answer are forgotten]\n");
        drop_messages(c, first, 2);
    }
}

// Waits for a line in a terminal; false: an interrupt. One that comes before the read begins would not end it.
static bool wait_for_line(void) {
#ifndef _WIN32
    struct pollfd in = { 0, POLLIN, 0 };
    while (is_terminal(stdin) && !is_stopped) {
        const int n = poll(&in, 1, 50);
        if (n > 0 || (n < 0 && errno != EINTR)) { break; }
    }
#endif
    return !is_stopped;
}

static bool read_line(struct text * line) { // false: the end of the input, or an interrupt
    int c;
    line->n = 0;
    if (append(line, "", 0) != GCUDA_STATUS_SUCCESS || !wait_for_line()) { return false; }
    while ((c = getchar()) != EOF && c != '\n') {
        const char byte = (char) c;
        if (append(line, &byte, 1) != GCUDA_STATUS_SUCCESS) { return false; }
    }
    return c != EOF || line->n > 0;
}

// A question that cannot be answered, being too long or no text, is forgotten, and the chat goes on.
static gcuda_status chat_turn(struct app * a, struct chat * c, const struct text * line) {
    struct tokens t = { NULL, 0 };
    struct text answer = { NULL, 0, 0 };
    gcuda_status st = check_message(line);
    if (st != GCUDA_STATUS_SUCCESS) {
        fprintf(stderr, "[%s]\n", gcuda_last_error());
        return GCUDA_STATUS_SUCCESS;
    }
    char * copy = (char *) no_null(malloc(line->n + 1), &st);
    TRY(st);
    memcpy(copy, line->data, line->n + 1);
    TRY(add_message(c, "user", copy));
    st = fit_chat(a, c, &t);
    if (st == GCUDA_STATUS_SUCCESS) { st = append(&answer, "", 0); }
    if (st == GCUDA_STATUS_SUCCESS) { st = answer_tokens(a, &t, &answer); }
    free(t.data);
    if (st == GCUDA_STATUS_SUCCESS) { return add_message(c, "assistant", answer.data); }
    free(answer.data);
    if (st != GCUDA_STATUS_INVALID_ARGUMENT) { return st; }
    fprintf(stderr, "[%s. The question is forgotten]\n", gcuda_last_error());
    drop_messages(c, c->n - 1, 1);
    return GCUDA_STATUS_SUCCESS;
}

static gcuda_status chat_loop(struct app * a, struct chat * c) {
    struct text line = { NULL, 0, 0 };
    bool was_interrupted = false;
    gcuda_status st = GCUDA_STATUS_SUCCESS;
    while (st == GCUDA_STATUS_SUCCESS) {
        is_stopped = 0;
        if (is_terminal(stdin)) { printf("%s> ", style(a, BOLD)); }
        fflush(stdout);
        const bool has_line = read_line(&line);
        if (is_terminal(stdin)) { printf("%s", style(a, PLAIN)); }
        if (!has_line && is_stopped && !was_interrupted) {
            printf("\n(/quit or Ctrl-D ends the chat; so does Ctrl-C again)\n");
            clearerr(stdin);
            was_interrupted = true;
            continue;
        }
        if (!has_line || strcmp(line.data, "/quit") == 0 || strcmp(line.data, "/exit") == 0) { break; }
        was_interrupted = false;
        if (strcmp(line.data, "/new") == 0) {
            drop_messages(c, a->o.system ? 1 : 0, c->n - (a->o.system ? 1 : 0));
        } else if (line.data[0] == '/' && strchr(line.data, ' ') == NULL) {
            fprintf(stderr, "%s: there are /new and /quit\n", line.data);
        } else if (line.data[0] != '\0') {
            st = chat_turn(a, c, &line);
        }
    }
    free(line.data);
    return st;
}

static gcuda_status command_chat(struct app * a) {
    struct chat c = { NULL, 0, 0 };
    gcuda_status st = make_session(a, 1, n_best_of(a));
    if (st == GCUDA_STATUS_SUCCESS && a->info.template_name == NULL) {
        st = fail(GCUDA_STATUS_UNSUPPORTED, "the file has no chat template that is known here: use -p TEXT --raw");
    }
    if (st == GCUDA_STATUS_SUCCESS && a->o.system != NULL) {
        char * copy = (char *) no_null(malloc(strlen(a->o.system) + 1), &st);
        if (copy != NULL) { st = add_message(&c, "system", strcpy(copy, a->o.system)); }
    }
    if (st == GCUDA_STATUS_SUCCESS && !a->o.quiet) {
        fprintf(stderr, "%s on %s\n/new forgets the chat, /quit ends it, Ctrl-C ends an answer.\n", a->info.name,
            a->info.backend);
    }
    if (st == GCUDA_STATUS_SUCCESS) { st = chat_loop(a, &c); }
    drop_messages(&c, 0, c.n);
    free(c.messages);
    return st;
}

// ---- info, tokenize ----

static gcuda_status command_info(struct app * a) {
    const struct llm_info * i = &a->info;
    printf("name          %s\narchitecture  %s%s\nparameters    %.1f million, %.1f MB\n", i->name, i->arch,
        i->is_encoder ? " (embeddings)" : "", (double) i->n_params * 1e-6, (double) i->n_bytes * 1e-6);
    printf("layers        %d of %d elements\nheads         %d of %d elements; keys and values: %d\n", i->n_layers,
        i->n_embd, i->n_heads, i->head_size, i->n_heads_kv);
    if (i->n_experts > 0) { printf("experts       %d\n", i->n_experts); }
    if (i->window > 0) { printf("window        %d tokens, in some layers\n", i->window); }
    printf("context       %d tokens\nvocabulary    %d tokens\nchat template %s\n", i->n_ctx_train, i->n_vocab,
        i->template_name ? i->template_name : "none that is known");
    printf("backend       %s\n", i->backend);
    return GCUDA_STATUS_SUCCESS;
}

// Bytes of the character at text; 0: none begins there, or it is not whole, as a token may be a part of one.
static size_t n_bytes_of_character(const char * text, size_t n) {
    const unsigned char c = (unsigned char) text[0];
    const size_t size = c < 0x80 ? 1 : c >= 0xF0 ? 4 : c >= 0xE0 ? 3 : c >= 0xC0 ? 2 : 0;
    for (size_t i = 1; i < size; ++i) {
        if (i >= n || ((unsigned char) text[i] & 0xC0) != 0x80) { return 0; }
    }
    return size;
}

static void print_quoted(const char * text, size_t n) {
    for (size_t i = 0, size; i < n; i += size != 0 ? size : 1) {
        const unsigned char c = (unsigned char) text[i];
        size = n_bytes_of_character(text + i, n - i);
        if (c == '\n') {
            printf("\\n");
        } else if (c < 32 || c == 127 || size == 0) {
            printf("\\x%02x", (unsigned) c);
        } else {
            fwrite(text + i, 1, size, stdout);
        }
    }
}

static gcuda_status command_tokenize(struct app * a) {
    struct text prompt = { NULL, 0, 0 };
    struct tokens t = { NULL, 0 };
    size_t n;
    gcuda_status st = read_prompt(a, &prompt);
    if (st == GCUDA_STATUS_SUCCESS) {
        st = tokens_of(
            a, prompt.data, prompt.n, a->o.special ? LLM_PARSE_SPECIAL | LLM_ADD_SPECIAL : LLM_ADD_SPECIAL, &t);
    }
    for (size_t i = 0; st == GCUDA_STATUS_SUCCESS && i < t.n; ++i) {
        const char * piece = llm_token_piece(a->model, t.data[i], &n);
        printf("%7d  '", t.data[i]);
        print_quoted(piece, n);
        printf("'\n");
    }
    if (st == GCUDA_STATUS_SUCCESS) { printf("%zu tokens\n", t.n); }
    free(t.data);
    free(prompt.data);
    return st;
}

// ---- bench ----

struct sample {
    double mean, deviation;
}; // tokens a second

static struct sample summary(const double * values, int n) {
    struct sample s = { 0.0, 0.0 };
    for (int i = 0; i < n; ++i) { s.mean += values[i] / n; }
    for (int i = 0; i < n; ++i) { s.deviation += (values[i] - s.mean) * (values[i] - s.mean) / (n > 1 ? n - 1 : 1); }
    s.deviation = sqrt(s.deviation);
    return s;
}

static gcuda_status bench_prompt(struct app * a, const int32_t * tokens, int depth, double * speed) {
    const int64_t begin = gcuda_time_us();
    TRY(llm_eval_tokens(a->session, 0, tokens, (size_t) a->o.n_prompt));
    *speed = 1e6 * a->o.n_prompt / (double) (gcuda_time_us() - begin);
    return llm_seq_truncate(a->session, 0, depth);
}

static gcuda_status bench_generation(struct app * a, const int32_t * tokens, int depth, int n, double * speed) {
    int32_t token = tokens[0];
    TRY(llm_eval_tokens(a->session, 0, &token, 1)); // the graph of one token is built
    const int64_t begin = gcuda_time_us();
    for (int i = 0; i < n && !is_stopped; ++i) {
        TRY(llm_sample(a->session, 0, &a->sampler, &token));
        TRY(llm_eval_tokens(a->session, 0, &token, 1));
    }
    if (is_stopped) { return fail(GCUDA_STATUS_ABORTED, "stopped"); }
    *speed = 1e6 * n / (double) (gcuda_time_us() - begin);
    return llm_seq_truncate(a->session, 0, depth);
}

// ---- profile: of generated tokens ----

enum { PROFILE_TOKENS = 16, PROFILE_ROWS = 48 };

// Time in the calls that sample and start a token's work, and until its result is available.
static gcuda_status profile_host(struct app * a, double * host_us, double * all_us) {
    int32_t token = 0, seq = 0;
    const struct llm_batch batch = { &token, &seq, NULL, 1 };
    bool is_done = false;
    int64_t host = 0;
    const int64_t begin = gcuda_time_us();
    for (int i = 0; i < PROFILE_TOKENS; ++i) {
        const int64_t start = gcuda_time_us();
        TRY(llm_sample(a->session, 0, &a->sampler, &token));
        TRY(llm_submit(a->session, &batch));
        TRY(llm_poll(a->session, 1, &is_done));
        host += gcuda_time_us() - start;
        TRY(llm_poll(a->session, 0, &is_done));
    }
    *host_us = (double) host / PROFILE_TOKENS;
    *all_us = (double) (gcuda_time_us() - begin) / PROFILE_TOKENS;
    return GCUDA_STATUS_SUCCESS;
}

struct profile_row {
    const char * op;
    enum gcuda_type type;
    int n;
    double us, bytes;
};

static int by_time(const void * a, const void * b) {
    const double x = ((const struct profile_row *) a)->us, y = ((const struct profile_row *) b)->us;
    return x < y ? 1 : x > y ? -1 : 0;
}

static int sum_records(const struct gcuda_cuda_profile_record * records, size_t n, struct profile_row * rows) {
    int n_rows = 0;
    for (size_t i = 0; i < n; ++i) {
        const struct gcuda_cuda_profile_record * r = &records[i];
        const enum gcuda_type type = r->n_src > 0 ? r->src_type[0] : r->type;
        int k = 0;
        while (k < n_rows && (strcmp(rows[k].op, r->op) != 0 || rows[k].type != type)) { ++k; }
        if (k == PROFILE_ROWS) { continue; }
        if (k == n_rows) { rows[n_rows++] = (struct profile_row){ r->op, type, 0, 0.0, 0.0 }; }
        ++rows[k].n;
        rows[k].us += r->us;
        rows[k].bytes += (double) r->n_bytes;
    }
    qsort(rows, (size_t) n_rows, sizeof *rows, by_time);
    return n_rows;
}

// Nodes one by one: each is launched alone then, without fusion and CUDA graphs.
static gcuda_status profile_nodes(struct app * a, gcuda_backend_t backend) {
    struct profile_row rows[PROFILE_ROWS];
    const struct gcuda_cuda_profile_record * records = NULL;
    size_t n = 0;
    int32_t token = 0;
    double sum = 0.0;
    TRY(gcuda_cuda_profile_begin(backend));
    for (int i = 0; i < PROFILE_TOKENS; ++i) { TRY(llm_eval_tokens(a->session, 0, &token, 1)); }
    TRY(gcuda_cuda_profile_end(backend));
    TRY(gcuda_cuda_profile_get(backend, &records, &n));
    const int n_rows = sum_records(records, n, rows);
    for (int i = 0; i < n_rows; ++i) { sum += rows[i].us; }
    printf("node by node, a token: %.0f nodes, %.0f us\n", (double) n / PROFILE_TOKENS, sum / PROFILE_TOKENS);
    for (int i = 0; i < n_rows; ++i) {
        printf("  %-24s %-6s %6.1f x %8.1f us %8.1f GB/s\n", rows[i].op, gcuda_type_name(rows[i].type),
            (double) rows[i].n / PROFILE_TOKENS, rows[i].us / PROFILE_TOKENS,
            rows[i].us > 0.0 ? 1e-3 * rows[i].bytes / rows[i].us : 0.0);
    }
    return GCUDA_STATUS_SUCCESS;
}

static gcuda_status bench_profile(struct app * a, int depth) {
    const gcuda_backend_t backend = llm_session_backend(a->session, 0);
    struct gcuda_cuda_plan_stats s;
    int32_t token = 0;
    double host_us = 0.0, all_us = 0.0;
    memset(&s, 0, sizeof s);
    TRY(llm_eval_tokens(a->session, 0, &token, 1));
    TRY(profile_host(a, &host_us, &all_us));
    printf("a token: %.1f us, %.1f of them in calls of the host\n", all_us, host_us);
    if (gcuda_backend_is_cuda(backend)) {
        TRY(gcuda_backend_cuda_get_plan_stats(backend, &s));
        printf("plans: %llu made, %llu reused, %llu updated, %llu captures, "
               "%llu graph launches, %llu fused launches, %llu beside\n",
            (unsigned long long) s.n_made, (unsigned long long) s.n_reused, (unsigned long long) s.n_updated,
            (unsigned long long) s.n_captures, (unsigned long long) s.n_graph_launches, (unsigned long long) s.n_fused,
            (unsigned long long) s.n_concurrent);
        TRY(profile_nodes(a, backend));
    }
    return llm_seq_truncate(a->session, 0, depth);
}

static gcuda_status bench_depth(struct app * a, const int32_t * tokens, int depth, int n, bool is_first) {
    enum { MOST = 100 };
    double prompt[MOST], generation[MOST];
    const int n_runs = a->o.repetitions < 1 ? 1 : a->o.repetitions > MOST ? MOST : a->o.repetitions;
    TRY(llm_seq_truncate(a->session, 0, 0));
    if (depth > 0) { TRY(llm_eval_tokens(a->session, 0, tokens, (size_t) depth)); }
    for (int i = -1; i < n_runs; ++i) { // the first one is not counted
        TRY(bench_prompt(a, tokens, depth, &prompt[i < 0 ? 0 : i]));
        TRY(bench_generation(a, tokens, depth, i < 0 && n > 2 ? 2 : n, &generation[i < 0 ? 0 : i]));
    }
    const struct sample p = summary(prompt, n_runs), g = summary(generation, n_runs);
    if (a->o.json) {
        printf("%s\n  {\"depth\": %d, \"prompt_tokens\": %d, \"prompt_per_second\": "
               "%.2f, \"prompt_deviation\": %.2f, \"generated_tokens\": %d, "
               "\"generated_per_second\": %.2f, \"generated_deviation\": %.2f}",
            is_first ? "[" : ",", depth, a->o.n_prompt, p.mean, p.deviation, n, g.mean, g.deviation);
    } else {
        printf("%7d  %6d tokens: %8.1f +- %6.1f  %6d tokens: %7.1f +- %5.1f\n", depth, a->o.n_prompt, p.mean,
            p.deviation, n, g.mean, g.deviation);
    }
    fflush(stdout);
    return a->o.profile && !a->o.json ? bench_profile(a, depth) : GCUDA_STATUS_SUCCESS;
}

// What comes before the second token: the first one makes plans and loads kernels.
static gcuda_status bench_start(struct app * a, int64_t session_us) {
    const struct llm_load_times * t = &a->info.load;
    const int64_t begin_us = gcuda_time_us();
    const int32_t token = 0;
    TRY(llm_eval_tokens(a->session, 0, &token, 1));
    const int64_t token_us = gcuda_time_us() - begin_us;
    if (a->o.json) { return GCUDA_STATUS_SUCCESS; }
    printf("%s, %s\n%.2f GB loaded in %.3f s: file %.3f, vocabulary %.3f, weights %.3f\n", a->info.name,
        a->info.backend, (double) a->info.n_bytes * 1e-9, (double) t->all_us * 1e-6, (double) t->file_us * 1e-6,
        (double) t->vocab_us * 1e-6, (double) t->weights_us * 1e-6);
    printf("%s started in %.3f s meanwhile, waited for %.3f s\n", a->info.backend, (double) t->backend_us * 1e-6,
        (double) t->wait_us * 1e-6);
    printf("session in %.3f s, first token in %.3f s\n", (double) session_us * 1e-6, (double) token_us * 1e-6);
    return GCUDA_STATUS_SUCCESS;
}

static gcuda_status bench_all(struct app * a, const int32_t * tokens, int n) {
    const char * at = a->o.depths ? a->o.depths : "0";
    if (!a->o.json) { printf("%7s  %-33s  %s\n", "depth", "prompt, tokens a second", "generation, tokens a second"); }
    for (bool is_first = true; *at != '\0'; is_first = false) {
        char * end;
        const long depth = strtol(at, &end, 10);
        TRY(bench_depth(a, tokens, (int) depth, n, is_first));
        at = *end == ',' ? end + 1 : end;
    }
    if (a->o.json) { printf("\n]\n"); }
    return GCUDA_STATUS_SUCCESS;
}

enum { MOST_BENCH = 1 << 20 }; // tokens

static gcuda_status check_depths(const char * depths) {
    for (const char * at = depths; at != NULL; ++at) {
        char * end;
        const long depth = strtol(at, &end, 10);
        if (end == at || depth < 0 || depth > MOST_BENCH || (*end != ',' && *end != '\0')) {
            return fail(GCUDA_STATUS_INVALID_ARGUMENT,
                "--depths %s: numbers from 0 to %d with commas between, as 0,1024", depths, (int) MOST_BENCH);
        }
        if (*end == '\0') { break; }
        at = end;
    }
    return GCUDA_STATUS_SUCCESS;
}

static int largest_depth(const char * at) {
    long most = 0;
    while (at != NULL && *at != '\0') {
        char * end;
        const long depth = strtol(at, &end, 10);
        if (depth > most) { most = depth; }
        at = end + (*end == ',');
    }
    return (int) most;
}

static gcuda_status command_bench(struct app * a) {
    TRY(check_depths(a->o.depths));
    if (a->o.n_tokens > MOST_BENCH) {
        return fail(GCUDA_STATUS_INVALID_ARGUMENT, "--tokens %d: at most %d", a->o.n_tokens, (int) MOST_BENCH);
    }
    const int n = a->o.n_tokens > 0 ? a->o.n_tokens : 32, depth = largest_depth(a->o.depths);
    const int n_more = n + 1 + 2 * (a->o.profile ? PROFILE_TOKENS + 1 : 0),
              most = depth + (a->o.n_prompt > n_more ? a->o.n_prompt : n_more);
    gcuda_status st;
    if (a->o.n_prompt < 1 || a->o.n_prompt > MOST_BENCH) {
        return fail(GCUDA_STATUS_INVALID_ARGUMENT, "--n-prompt %d: 1 to %d", a->o.n_prompt, (int) MOST_BENCH);
    }
    a->o.ctx = most;
    TRY(llm_sampler_init(&a->sampler, NULL));
    const int64_t begin_us = gcuda_time_us();
    TRY(make_session(a, 1, strcmp(a->info.backend, "CPU") != 0));
    TRY(bench_start(a, gcuda_time_us() - begin_us));
    int32_t * tokens = (int32_t *) no_null(malloc((size_t) most * sizeof(int32_t)), &st);
    TRY(st);
    uint32_t random = 1; // any tokens will do
    for (int i = 0; i < most; ++i) {
        tokens[i] = (int32_t) ((random = random * 1664525u + 1013904223u) >> 8) % a->info.n_vocab;
    }
    st = bench_all(a, tokens, n);
    free(tokens);
    return st;
}

// ---- perplexity ----

// -ln of the probability that the logits give the token.
static double surprise(const float * logits, int32_t n, int32_t token) {
    float best = logits[0];
    double sum = 0.0;
    for (int32_t i = 1; i < n; ++i) { best = logits[i] > best ? logits[i] : best; }
    for (int32_t i = 0; i < n; ++i) { sum += exp((double) logits[i] - (double) best); }
    return log(sum) - ((double) logits[token] - (double) best);
}

enum { PERPLEXITY_CHUNK = 64 };

// The text in pieces as long as the context: each token is foreseen from those before it in its piece.
static gcuda_status perplexity_of(struct app * a, const struct tokens * t, double * sum, double * squares, size_t * n) {
    bool wants[PERPLEXITY_CHUNK];
    for (int i = 0; i < PERPLEXITY_CHUNK; ++i) { wants[i] = true; }
    a->doing = "reading";
    for (size_t at = 0; at + 1 < t->n;) {
        size_t n_chunk = t->n - at < (size_t) PERPLEXITY_CHUNK ? t->n - at : (size_t) PERPLEXITY_CHUNK;
        if (llm_n_free(a->session) == 0) { TRY(llm_seq_truncate(a->session, 0, 0)); }
        if (n_chunk > (size_t) llm_n_free(a->session)) { n_chunk = (size_t) llm_n_free(a->session); }
        const struct llm_batch batch = { t->data + at, NULL, wants, n_chunk };
        TRY(llm_eval(a->session, &batch));
        for (size_t i = 0; i < n_chunk && at + i + 1 < t->n; ++i, ++*n) {
            const double s = surprise(llm_logits(a->session, (int32_t) i), a->info.n_vocab, t->data[at + i + 1]);
            *sum += s;
            *squares += s * s;
        }
        at += n_chunk;
        if (!on_progress(a, (float) at / (float) t->n)) { return fail(GCUDA_STATUS_ABORTED, "stopped"); }
    }
    return GCUDA_STATUS_SUCCESS;
}

static gcuda_status command_perplexity(struct app * a) {
    struct text text = { NULL, 0, 0 };
    struct tokens t = { NULL, 0 };
    double sum = 0.0, squares = 0.0;
    size_t n = 0;
    gcuda_status st = read_file(a->o.file, &text);
    if (a->o.chunk == 0) { a->o.chunk = PERPLEXITY_CHUNK; }
    if (st == GCUDA_STATUS_SUCCESS) { st = make_session(a, PERPLEXITY_CHUNK, 0); }
    if (st == GCUDA_STATUS_SUCCESS) { st = tokens_of(a, text.data, text.n, LLM_ADD_SPECIAL, &t); }
    if (a->o.n_tokens > 0 && t.n > (size_t) a->o.n_tokens) { t.n = (size_t) a->o.n_tokens; }
    if (st == GCUDA_STATUS_SUCCESS && t.n < 2) {
        st = fail(GCUDA_STATUS_INVALID_ARGUMENT, "%s: a text of %zu tokens; at least 2 are wanted", a->o.file, t.n);
    }
    if (st == GCUDA_STATUS_SUCCESS) { st = perplexity_of(a, &t, &sum, &squares, &n); }
    clear_bar(a);
    if (st == GCUDA_STATUS_SUCCESS) {
        const double mean = sum / (double) n,
                     deviation = sqrt(fmax(squares / (double) n - mean * mean, 0.0) / (double) n);
        printf("perplexity %.4f +- %.4f over %zu tokens\n", exp(mean), exp(mean) * deviation, n);
    }
    free(t.data);
    free(text.data);
    return st;
}

// ---- embed ----

struct line {
    const char * text;
    size_t n;
    float * vector;
    double likeness;
};

// A text longer than the context is cut to its beginning, with the token that ends texts.
static gcuda_status embed_text(struct app * a, const char * text, size_t n, float * vector) {
    struct tokens t = { NULL, 0 };
    gcuda_status st = tokens_of(a, text, n, LLM_ADD_SPECIAL, &t);
    const size_t most = (size_t) llm_n_ctx(a->session);
    if (st == GCUDA_STATUS_SUCCESS && t.n == 0) { // of bytes that the vocabulary lacks: like nothing
        fprintf(stderr, "warning: the vocabulary has no token for: %.*s\n", (int) (n < 40 ? n : 40), text);
        for (int32_t i = 0; i < a->info.n_embd; ++i) { vector[i] = 0.0f; }
        free(t.data);
        return st;
    }
    if (st == GCUDA_STATUS_SUCCESS && t.n > most) {
        fprintf(stderr, "warning: a text of %zu tokens is cut to the %zu that the context holds: %.*s...\n", t.n, most,
            (int) (n < 40 ? n : 40), text);
        t.data[most - 1] = t.data[t.n - 1];
        t.n = most;
    }
    if (st == GCUDA_STATUS_SUCCESS) { st = llm_embed(a->session, t.data, t.n, vector); }
    free(t.data);
    return st;
}

static int by_likeness(const void * a, const void * b) {
    const double x = ((const struct line *) a)->likeness, y = ((const struct line *) b)->likeness;
    return x < y ? 1 : x > y ? -1 : 0;
}

// Cuts a text into its lines, without empty ones. *lines is malloc'ed.
static gcuda_status cut_lines(const struct text * text, struct line ** lines, size_t * n) {
    gcuda_status st;
    size_t most = 1;
    for (size_t i = 0; i < text->n; ++i) { most += text->data[i] == '\n'; }
    *lines = (struct line *) no_null(calloc(most, sizeof **lines), &st);
    TRY(st);
    *n = 0;
    for (const char *at = text->data, *end = text->data + text->n; at < end;) {
        const char * stop = (const char *) memchr(at, '\n', (size_t) (end - at));
        if (stop == NULL) { stop = end; }
        const size_t size = (size_t) (stop - at) - (stop > at && stop[-1] == '\r');
        if (size > 0) {
            (*lines)[*n].text = at;
            (*lines)[(*n)++].n = size;
        }
        at = stop + 1;
    }
    return GCUDA_STATUS_SUCCESS;
}

static gcuda_status rank_lines(struct app * a, struct line * lines, size_t n, const float * question, float * vector) {
    a->doing = "embedding";
    for (size_t i = 0; i < n; ++i) {
        TRY(embed_text(a, lines[i].text, lines[i].n, vector));
        for (int32_t k = 0; k < a->info.n_embd; ++k) { lines[i].likeness += (double) question[k] * (double) vector[k]; }
        if (!on_progress(a, (float) i / (float) n)) { return fail(GCUDA_STATUS_ABORTED, "stopped"); }
    }
    qsort(lines, n, sizeof *lines, by_likeness);
    return GCUDA_STATUS_SUCCESS;
}

static gcuda_status embed_search(
    struct app * a, const struct text * question, const struct text * text, float * vectors) {
    struct line * lines = NULL;
    size_t n = 0;
    TRY(embed_text(a, question->data, question->n, vectors));
    TRY(cut_lines(text, &lines, &n));
    if (n == 0) {
        free(lines);
        return fail(GCUDA_STATUS_INVALID_ARGUMENT, "%s has no lines", a->o.file);
    }
    const gcuda_status st = rank_lines(a, lines, n, vectors, vectors + a->info.n_embd);
    clear_bar(a);
    for (size_t i = 0; st == GCUDA_STATUS_SUCCESS && i < n && i < (size_t) a->o.n_best; ++i) {
        printf("%6.3f  %.*s\n", lines[i].likeness, (int) lines[i].n, lines[i].text);
    }
    free(lines);
    return st;
}

static gcuda_status command_embed(struct app * a) {
    struct text question = { NULL, 0, 0 }, text = { NULL, 0, 0 };
    gcuda_status st = read_file(a->o.file, &text);
    if (st == GCUDA_STATUS_SUCCESS) { st = read_question(a, &question); }
    if (!a->info.is_encoder && a->o.ctx == 0) { a->o.ctx = a->info.n_ctx_train < 512 ? a->info.n_ctx_train : 512; }
    a->o.chunk = a->o.ctx; // a text is one chunk
    if (st == GCUDA_STATUS_SUCCESS) { st = make_session(a, 1, 0); }
    float * vectors =
        st == GCUDA_STATUS_SUCCESS ? (float *) no_null(malloc(2 * sizeof(float) * (size_t) a->info.n_embd), &st) : NULL;
    if (st == GCUDA_STATUS_SUCCESS) { st = embed_search(a, &question, &text, vectors); }
    free(vectors);
    free(text.data);
    free(question.data);
    return st;
}

// ---- the program ----

static gcuda_status run_command(struct app * a) {
    // writes: needs a model that does
    static const struct {
        const char * name;
        bool writes;
        gcuda_status (*run)(struct app * a);
    } rows[] = {
        { "run", true, command_run },
        { "chat", true, command_chat },
        { "bench", true, command_bench },
        { "perplexity", true, command_perplexity },
        { "embed", false, command_embed },
        { "tokenize", false, command_tokenize },
        { "info", false, command_info },
    };
    TRY(make_sampler(a)); // before a large file is loaded for nothing
    TRY(load_model(a));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
        if (strcmp(a->o.command ? a->o.command : "run", rows[i].name) != 0) { continue; }
        if (!rows[i].writes || !a->info.is_encoder) { return rows[i].run(a); }
        return fail(GCUDA_STATUS_UNSUPPORTED, "%s makes embeddings and writes no text: llm embed FILE -m %s -p TEXT",
            a->info.arch, a->o.model);
    }
    return GCUDA_STATUS_INVALID_ARGUMENT; // take_word knows the same names
}

int main(int argc, char ** argv) {
    struct app a;
    memset(&a, 0, sizeof a);
    gcuda_status st = parse(&a.o, argc, argv);
    if (st == GCUDA_STATUS_SUCCESS && (a.o.help || argc == 1)) {
        print_help();
        st = check_output();
        if (st != GCUDA_STATUS_SUCCESS) { fprintf(stderr, "llm: %s\n", gcuda_last_error()); }
        return st == GCUDA_STATUS_SUCCESS ? 0 : 1;
    }
    a.last_percent = -1;
    a.has_colour = is_terminal(stdout) && getenv("NO_COLOR") == NULL;
    a.has_bar = is_terminal(stderr) && !a.o.quiet;
    catch_interrupts();
    if (st == GCUDA_STATUS_SUCCESS) { st = run_command(&a); }
    clear_bar(&a);
    if (st == GCUDA_STATUS_SUCCESS) { st = check_output(); }
    const bool was_stopped = st == GCUDA_STATUS_ABORTED && is_stopped; // whatever node it was in
    if (st != GCUDA_STATUS_SUCCESS) { fprintf(stderr, "llm: %s\n", was_stopped ? "stopped" : gcuda_last_error()); }
    llm_session_free(a.session);
    llm_model_free(a.model);
    gcuda_shutdown();
    return st == GCUDA_STATUS_SUCCESS ? 0 : 1;
}
