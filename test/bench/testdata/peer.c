// Measures llama.cpp for the comparison: bench runs it beside the engine.
//
//   peer quantize LIBDIR IN OUT FTYPE   writes IN in another quantization
//   peer measure LIBDIR MODEL THREADS   reads the name of a task from standard input, a line each, and answers
//                                       with the seconds of wall and of processor time that it took
//
// The tasks are those of engine.go. Threads are a pool that lives on between calls, as in llama-bench.
#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "llama.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { promptTokens = 512, decodeTokens = 128, sequences = 4, depth = 2048, deepTokens = 32 };

static void quiet(enum ggml_log_level level, const char *text, void *user) {
  (void)user;
  if (level == GGML_LOG_LEVEL_ERROR) fputs(text, stderr);
}

static int fail(const char *what) {
  fprintf(stderr, "peer: %s failed\n", what);
  return 1;
}

static double seconds(clockid_t clock) {
  struct timespec t;
  clock_gettime(clock, &t);
  return t.tv_sec + 1e-9 * t.tv_nsec;
}

static int quantize(char **v) {
  struct llama_model_quantize_params p = llama_model_quantize_default_params();
  p.nthread = 2;
  p.allow_requantize = true;
  p.ftype = atoi(v[5]);
  return llama_model_quantize(v[3], v[4], &p) ? fail("quantize") : 0;
}

static struct llama_context *context;
static struct llama_batch batch;
static int vocabulary, deepReady;

static void add(int pos, int sequence, int logits) {
  int i = batch.n_tokens++;
  batch.token[i] = rand() % vocabulary;
  batch.pos[i] = pos;
  batch.n_seq_id[i] = 1;
  batch.seq_id[i][0] = sequence;
  batch.logits[i] = logits;
}

static int run(void) {
  int failed = llama_decode(context, batch);
  llama_synchronize(context);
  batch.n_tokens = 0;
  return failed;
}

// Sequence `sequences` keeps a prefix of `depth` tokens, which is computed once.
static int deepen(void) {
  for (int at = 0; at < depth; at += promptTokens) {
    for (int i = 0; i < promptTokens; i++) add(at + i, sequences, i == promptTokens - 1);
    if (run()) return 1;
  }
  return deepReady = 1, 0;
}

static int decode(int tokens, int first, int count, int from) {
  for (int pos = from; pos < from + tokens; pos++) {
    for (int s = first; s < first + count; s++) add(pos, s, 1);
    if (run()) return 1;
  }
  return 0;
}

static int task(const char *name) {
  if (!strcmp(name, "prefill")) {
    for (int i = 0; i < promptTokens; i++) add(i, 0, i == promptTokens - 1);
    return run();
  }
  if (!strcmp(name, "decode")) return decode(decodeTokens, 0, 1, 0);
  if (!strcmp(name, "batch")) return decode(decodeTokens, 0, sequences, 0);
  if (!strcmp(name, "deep")) return decode(deepTokens, sequences, 1, depth);
  return 1;
}

static void clear(void) {
  llama_memory_t memory = llama_get_memory(context);
  for (int s = 0; s < sequences; s++) llama_memory_seq_rm(memory, s, -1, -1);
  llama_memory_seq_rm(memory, sequences, depth, -1);
}

static int attachPool(int threads) {
  ggml_backend_reg_t cpu = ggml_backend_reg_by_name("CPU");
  if (!cpu) return 1;
  struct ggml_threadpool *(*make)(struct ggml_threadpool_params *) = ggml_backend_reg_get_proc_address(cpu, "ggml_threadpool_new");
  if (!make) return 1;
  struct ggml_threadpool_params p = ggml_threadpool_params_default(threads);
  struct ggml_threadpool *pool = make(&p);
  if (!pool) return 1;
  llama_attach_threadpool(context, pool, NULL);
  return 0;
}

static int measure(char **v) {
  int threads = atoi(v[4]);
  struct llama_model *model = llama_model_load_from_file(v[3], llama_model_default_params());
  if (!model) return fail("load");
  struct llama_context_params p = llama_context_default_params();
  p.n_ctx = 4096;
  p.n_batch = p.n_ubatch = promptTokens;
  p.n_threads = p.n_threads_batch = threads;
  p.n_seq_max = sequences + 1;
  p.kv_unified = true;
  context = llama_init_from_model(model, p);
  if (!context) return fail("context");
  if (attachPool(threads)) return fail("thread pool");
  vocabulary = llama_vocab_n_tokens(llama_model_get_vocab(model));
  batch = llama_batch_init(promptTokens, 0, 1);
  char name[64];
  while (scanf("%63s", name) == 1) {
    if (!strcmp(name, "deep") && !deepReady && deepen()) return fail("prefix");
    double wall = seconds(CLOCK_MONOTONIC), cpu = seconds(CLOCK_PROCESS_CPUTIME_ID);
    if (task(name)) return fail(name);
    wall = seconds(CLOCK_MONOTONIC) - wall, cpu = seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu;
    clear();
    printf("%.6f %.6f\n", wall, cpu);
    fflush(stdout);
  }
  return 0;
}

int main(int c, char **v) {
  if (c < 5) return fail("arguments");
  llama_log_set(quiet, NULL);
  ggml_backend_load_all_from_path(v[2]);
  llama_backend_init();
  return strcmp(v[1], "quantize") ? measure(v) : quantize(v);
}
