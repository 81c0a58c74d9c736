package gguf

import "fmt"

// Type is a tensor's storage format, numbered as in ggml.
type Type uint32

// The tensor types whose size this package knows.
const (
	F32    Type = 0
	F16    Type = 1
	Q4_0   Type = 2
	Q4_1   Type = 3
	Q5_0   Type = 6
	Q5_1   Type = 7
	Q8_0   Type = 8
	Q8_1   Type = 9
	Q2_K   Type = 10
	Q3_K   Type = 11
	Q4_K   Type = 12
	Q5_K   Type = 13
	Q6_K   Type = 14
	Q8_K   Type = 15
	IQ4_NL Type = 20
	IQ4_XS Type = 23
	I8     Type = 24
	I16    Type = 25
	I32    Type = 26
	I64    Type = 27
	F64    Type = 28
	BF16   Type = 30
	MXFP4  Type = 39
)

// block is the unit a type is stored in: size bytes hold elements values.
type block struct {
	name     string
	elements uint64
	size     uint64
}

func (t Type) block() (block, bool) {
	switch t {
	case F32:
		return block{"F32", 1, 4}, true
	case F16:
		return block{"F16", 1, 2}, true
	case Q4_0:
		return block{"Q4_0", 32, 18}, true
	case Q4_1:
		return block{"Q4_1", 32, 20}, true
	case Q5_0:
		return block{"Q5_0", 32, 22}, true
	case Q5_1:
		return block{"Q5_1", 32, 24}, true
	case Q8_0:
		return block{"Q8_0", 32, 34}, true
	case Q8_1:
		return block{"Q8_1", 32, 36}, true
	case Q2_K:
		return block{"Q2_K", 256, 84}, true
	case Q3_K:
		return block{"Q3_K", 256, 110}, true
	case Q4_K:
		return block{"Q4_K", 256, 144}, true
	case Q5_K:
		return block{"Q5_K", 256, 176}, true
	case Q6_K:
		return block{"Q6_K", 256, 210}, true
	case Q8_K:
		return block{"Q8_K", 256, 292}, true
	default:
	}
	return t.rareBlock()
}

func (t Type) rareBlock() (block, bool) {
	switch t {
	case IQ4_NL:
		return block{"IQ4_NL", 32, 18}, true
	case IQ4_XS:
		return block{"IQ4_XS", 256, 136}, true
	case I8:
		return block{"I8", 1, 1}, true
	case I16:
		return block{"I16", 1, 2}, true
	case I32:
		return block{"I32", 1, 4}, true
	case I64:
		return block{"I64", 1, 8}, true
	case F64:
		return block{"F64", 1, 8}, true
	case BF16:
		return block{"BF16", 1, 2}, true
	case MXFP4:
		return block{"MXFP4", 32, 17}, true
	default:
	}
	return block{}, false
}

// String is the name ggml gives the type.
func (t Type) String() string {
	if b, ok := t.block(); ok {
		return b.name
	}
	return fmt.Sprintf("type %d", uint32(t))
}
