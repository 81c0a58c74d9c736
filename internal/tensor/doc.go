// Package tensor multiplies quantized matrices.
//
// It also holds the few vector operations a transformer needs around its products: normalisation, rotary positions,
// softmax, gating, and attention over 16-token pages of f16 keys and values.
//
// Every result is a function of its inputs alone. A token's row of a product has one order of accumulation, whatever
// the number of tokens beside it, its place in a tile, the number of threads and the kernel that ran: along the columns,
// 32 at a time, exact integers inside a block and one fused multiply-add a block (one a column for float formats).
// The portable kernels follow the same order with the same roundings, so a machine without AVX2 gives the same bits.
//
// Packed matrices and the words of activations are little-endian, and so must the machine be.
//
// Layers, top down: Matrix (packed weights), Acts (activations of some tokens, quantized for a matrix), Mul and its
// relatives, Team (the threads that share a product), and below them a set of kernels which exists twice: as generated
// AVX2 assembly and in Go.
package tensor
