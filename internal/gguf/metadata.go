package gguf

import (
	"encoding/binary"
	"iter"
	"math"
	"slices"
)

// kind is the type of a metadata value, numbered as in the specification.
type kind uint32

const (
	kindUint8   kind = 0
	kindInt8    kind = 1
	kindUint16  kind = 2
	kindInt16   kind = 3
	kindUint32  kind = 4
	kindInt32   kind = 5
	kindFloat32 kind = 6
	kindBool    kind = 7
	kindString  kind = 8
	kindArray   kind = 9
	kindUint64  kind = 10
	kindInt64   kind = 11
	kindFloat64 kind = 12
)

// size is the width of a fixed-width kind in bytes, 0 for any other.
func (k kind) size() uint64 {
	switch k {
	case kindUint8, kindInt8, kindBool:
		return 1
	case kindUint16, kindInt16:
		return 2
	case kindUint32, kindInt32, kindFloat32:
		return 4
	case kindUint64, kindInt64, kindFloat64:
		return 8
	case kindString, kindArray:
	}
	return 0
}

// value is an undecoded metadata value. For an array, elem is its elements'
// kind, count their number and raw their bytes.
type value struct {
	kind  kind
	elem  kind
	count uint64
	raw   []byte
}

// Metadata are the key-value pairs of a file. Each getter reports false when
// the key is absent or holds another kind of value.
type Metadata struct {
	keys   []string
	values map[string]value
}

// Keys lists the keys in the file's order.
func (m Metadata) Keys() iter.Seq[string] { return slices.Values(m.keys) }

// Has reports whether the key is present, whatever its value.
func (m Metadata) Has(key string) bool {
	_, ok := m.values[key]
	return ok
}

// String returns a string.
func (m Metadata) String(key string) (string, bool) {
	v, ok := m.values[key]
	if !ok || v.kind != kindString {
		return "", false
	}
	return string(v.raw), true
}

// Int returns an integer of any width that fits an int64.
func (m Metadata) Int(key string) (int64, bool) {
	v, ok := m.values[key]
	if !ok {
		return 0, false
	}
	return decodeInt(v.kind, v.raw)
}

// Uint returns an integer of any width that is not negative.
func (m Metadata) Uint(key string) (uint64, bool) {
	v, ok := m.values[key]
	if !ok {
		return 0, false
	}
	if v.kind == kindUint64 {
		return binary.LittleEndian.Uint64(v.raw), true
	}
	i, ok := decodeInt(v.kind, v.raw)
	return uint64(i), ok && i >= 0
}

// Float returns a 32-bit or 64-bit floating point number.
func (m Metadata) Float(key string) (float64, bool) {
	v, ok := m.values[key]
	if !ok {
		return 0, false
	}
	return decodeFloat(v.kind, v.raw)
}

// Bool returns a boolean.
func (m Metadata) Bool(key string) (value, ok bool) {
	v, ok := m.values[key]
	if !ok || v.kind != kindBool {
		return false, false
	}
	return v.raw[0] != 0, true
}

// Strings returns an array of strings.
func (m Metadata) Strings(key string) ([]string, bool) {
	v, ok := m.array(key, kindString)
	if !ok {
		return nil, false
	}
	out := make([]string, v.count)
	raw := v.raw
	for i := range out {
		n := binary.LittleEndian.Uint64(raw)
		out[i] = string(raw[8 : 8+n])
		raw = raw[8+n:]
	}
	return out, true
}

// Ints returns an array of integers of any width, each of which fits an int64.
func (m Metadata) Ints(key string) ([]int64, bool) {
	v, ok := m.values[key]
	if !ok || v.kind != kindArray || v.elem.size() == 0 {
		return nil, false
	}
	out := make([]int64, v.count)
	for i := range out {
		if out[i], ok = decodeInt(v.elem, v.element(i)); !ok {
			return nil, false
		}
	}
	return out, true
}

// Floats returns an array of 32-bit or 64-bit floating point numbers.
func (m Metadata) Floats(key string) ([]float32, bool) {
	v, ok := m.values[key]
	if !ok || v.kind != kindArray || v.elem.size() == 0 {
		return nil, false
	}
	out := make([]float32, v.count)
	for i := range out {
		x, ok := decodeFloat(v.elem, v.element(i))
		if !ok {
			return nil, false
		}
		out[i] = float32(x)
	}
	return out, true
}

// Bools returns an array of booleans.
func (m Metadata) Bools(key string) ([]bool, bool) {
	v, ok := m.array(key, kindBool)
	if !ok {
		return nil, false
	}
	out := make([]bool, v.count)
	for i := range out {
		out[i] = v.raw[i] != 0
	}
	return out, true
}

func (m Metadata) array(key string, elem kind) (value, bool) {
	v, ok := m.values[key]
	return v, ok && v.kind == kindArray && v.elem == elem
}

// element is the i-th value of an array of a fixed-width kind.
func (v value) element(i int) []byte {
	n := v.elem.size()
	return v.raw[uint64(i)*n:][:n]
}

func decodeInt(k kind, raw []byte) (int64, bool) {
	switch k {
	case kindUint8:
		return int64(raw[0]), true
	case kindInt8:
		return int64(int8(raw[0])), true
	case kindUint16:
		return int64(binary.LittleEndian.Uint16(raw)), true
	case kindInt16:
		return int64(int16(binary.LittleEndian.Uint16(raw))), true
	case kindUint32:
		return int64(binary.LittleEndian.Uint32(raw)), true
	case kindInt32:
		return int64(int32(binary.LittleEndian.Uint32(raw))), true
	case kindUint64, kindInt64:
		u := binary.LittleEndian.Uint64(raw)
		return int64(u), k == kindInt64 || u <= math.MaxInt64
	case kindFloat32, kindFloat64, kindBool, kindString, kindArray:
	}
	return 0, false
}

func decodeFloat(k kind, raw []byte) (float64, bool) {
	switch k {
	case kindFloat32:
		return float64(math.Float32frombits(binary.LittleEndian.Uint32(raw))), true
	case kindFloat64:
		return math.Float64frombits(binary.LittleEndian.Uint64(raw)), true
	case kindUint8, kindInt8, kindUint16, kindInt16, kindUint32, kindInt32, kindUint64, kindInt64,
		kindBool, kindString, kindArray:
	}
	return 0, false
}
