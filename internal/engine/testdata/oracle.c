// Runs llama.cpp for the engine's tests.
//
//   oracle quantize LIBDIR IN OUT FTYPE     writes IN in another quantization
//   oracle logits LIBDIR MODEL TEXT N       tokenizes the file TEXT, evaluates its first N tokens as one
//                                           sequence and writes to standard output: N and the size of the
//                                           vocabulary as int32, N tokens as int32, then for each
//                                           token the logits after it as float32.
#include "llama.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void quiet(enum ggml_log_level level, const char *text, void *user) {
  (void)user;
  if (level == GGML_LOG_LEVEL_ERROR) fputs(text, stderr);
}

static int fail(const char *what) {
  fprintf(stderr, "oracle: %s failed\n", what);
  return 1;
}

static int quantize(char **v) {
  struct llama_model_quantize_params p = llama_model_quantize_default_params();
  p.nthread = 2;
  p.allow_requantize = true;
  p.ftype = atoi(v[5]);
  return llama_model_quantize(v[3], v[4], &p) ? fail("quantize") : 0;
}

static char *read_file(const char *path, long *size) {
  FILE *f = fopen(path, "rb");
  if (!f) return NULL;
  fseek(f, 0, SEEK_END);
  *size = ftell(f);
  rewind(f);
  char *text = malloc(*size);
  if (fread(text, 1, *size, f) != (size_t)*size) return NULL;
  fclose(f);
  return text;
}

enum { chunk = 64 };

static int logits(char **v) {
  int n = atoi(v[5]);
  struct llama_model *m = llama_model_load_from_file(v[3], llama_model_default_params());
  if (!m) return fail("load");
  const struct llama_vocab *vocab = llama_model_get_vocab(m);
  struct llama_context_params p = llama_context_default_params();
  p.n_ctx = n + 64;
  p.n_threads = p.n_threads_batch = 2;
  struct llama_context *x = llama_init_from_model(m, p);
  if (!x) return fail("context");
  long size;
  char *text = read_file(v[4], &size);
  if (!text) return fail("read text");
  llama_token *tokens = malloc(size * sizeof *tokens);
  int got = llama_tokenize(vocab, text, size, tokens, size, false, false);
  if (got < n) return fail("tokenize");
  int head[2] = {n, llama_vocab_n_tokens(vocab)};
  fwrite(head, 4, 2, stdout);
  fwrite(tokens, 4, n, stdout);
  struct llama_batch b = llama_batch_init(chunk, 0, 1);
  for (int at = 0; at < n; at += b.n_tokens) {
    b.n_tokens = n - at < chunk ? n - at : chunk;
    for (int i = 0; i < b.n_tokens; i++) {
      b.token[i] = tokens[at + i];
      b.pos[i] = at + i;
      b.n_seq_id[i] = 1;
      b.seq_id[i][0] = 0;
      b.logits[i] = 1;
    }
    if (llama_decode(x, b)) return fail("decode");
    for (int i = 0; i < b.n_tokens; i++) fwrite(llama_get_logits_ith(x, i), 4, head[1], stdout);
  }
  return fflush(stdout) ? fail("write") : 0;
}

int main(int c, char **v) {
  if (c != 6) return fail("arguments");
  llama_log_set(quiet, NULL);
  ggml_backend_load_all_from_path(v[2]);
  llama_backend_init();
  return strcmp(v[1], "quantize") ? logits(v) : quantize(v);
}
