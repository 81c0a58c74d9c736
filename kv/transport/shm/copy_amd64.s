//go:build !purego

#include "textflag.h"

// func streamAVX2(to, from *byte, n int)
//
// Requires: to is aligned to 32 bytes, n is a multiple of 128 and not 0.
TEXT ·streamAVX2(SB), NOSPLIT, $0-24
	MOVQ to+0(FP), DI
	MOVQ from+8(FP), SI
	MOVQ n+16(FP), CX

lines:
	VMOVDQU  (SI), Y0
	VMOVDQU  32(SI), Y1
	VMOVDQU  64(SI), Y2
	VMOVDQU  96(SI), Y3
	VMOVNTDQ Y0, (DI)
	VMOVNTDQ Y1, 32(DI)
	VMOVNTDQ Y2, 64(DI)
	VMOVNTDQ Y3, 96(DI)
	ADDQ     $128, SI
	ADDQ     $128, DI
	SUBQ     $128, CX
	JNZ      lines

	// Non-temporal stores are ordered with nothing but this.
	SFENCE
	VZEROUPPER
	RET
