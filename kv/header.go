package kv

import (
	"encoding/binary"
	"math/bits"
)

// Magic opens every page header: "BKV1" in little-endian order.
const Magic uint32 = 0x31564b42

// BlockMax bounds the block index, which has 24 bits in a header.
const BlockMax = 1<<24 - 1

// Tag says whose a page is, where it belongs and how much of it is written: all
// of the header but the sum. Little-endian, in this order:
//
//	0 magic 4 | 4 version 1 | 5 tokens 1 | 6 layout 2 | 8 epoch 8 | 16 generation 8
//	24 tenant 8 | 32 sequence 8 | 40 slot 4 | 44 block 3 | 47 rank 1 | 48 sum 16
type Tag struct {
	Layout     uint16
	Tokens     uint8 // written extent, 0 to PageTokens
	Transfer   TransferID
	Generation Generation
	Tenant     TenantTag
	Slot       Slot
	Block      uint32 // index of the page in its sequence, at most BlockMax
}

const tagBytes = 48

// Put writes the tag into the first 48 bytes of header.
func (t Tag) Put(header []byte) {
	_ = header[HeaderBytes-1]
	le := binary.LittleEndian
	le.PutUint32(header[0:], Magic)
	header[4] = WireVersion
	header[5] = t.Tokens
	le.PutUint16(header[6:], t.Layout)
	le.PutUint64(header[8:], uint64(t.Transfer.Epoch))
	le.PutUint64(header[16:], uint64(t.Generation))
	le.PutUint64(header[24:], uint64(t.Tenant))
	le.PutUint64(header[32:], t.Transfer.Sequence)
	le.PutUint32(header[40:], uint32(t.Slot))
	le.PutUint32(header[44:], t.Block&BlockMax|uint32(t.Transfer.Rank)<<24)
}

// ParseTag reads a header. ok is false unless magic and version are ours and the
// extent is possible.
func ParseTag(header []byte) (t Tag, ok bool) {
	if len(header) < HeaderBytes {
		return Tag{}, false
	}
	le := binary.LittleEndian
	if le.Uint32(header) != Magic || header[4] != WireVersion || header[5] > PageTokens {
		return Tag{}, false
	}
	return Tag{
		Layout:     le.Uint16(header[6:]),
		Tokens:     header[5],
		Transfer:   TransferID{Epoch: Epoch(le.Uint64(header[8:])), Sequence: le.Uint64(header[32:]), Rank: header[47]},
		Generation: Generation(le.Uint64(header[16:])),
		Tenant:     TenantTag(le.Uint64(header[24:])),
		Slot:       Slot(le.Uint32(header[40:])),
		Block:      le.Uint32(header[44:]) & BlockMax,
	}, true
}

// Matches reports whether header carries exactly this tag, extent included.
func (t *Tag) Matches(header []byte) bool {
	_ = header[HeaderBytes-1]
	le := binary.LittleEndian
	return le.Uint64(header[0:]) == uint64(Magic)|WireVersion<<32|uint64(t.Tokens)<<40|uint64(t.Layout)<<48 &&
		le.Uint64(header[8:]) == uint64(t.Transfer.Epoch) && le.Uint64(header[16:]) == uint64(t.Generation) &&
		le.Uint64(header[24:]) == uint64(t.Tenant) && le.Uint64(header[32:]) == t.Transfer.Sequence &&
		le.Uint64(header[40:]) == uint64(t.Slot)|uint64(t.Block&BlockMax)<<32|uint64(t.Transfer.Rank)<<56
}

// PutTrailer writes the tag's 16 bytes behind the body: the generation, then the
// transfer folded into 64 bits.
func (t Tag) PutTrailer(trailer []byte) {
	_ = trailer[TrailerBytes-1]
	binary.LittleEndian.PutUint64(trailer, uint64(t.Generation))
	binary.LittleEndian.PutUint64(trailer[8:], t.Transfer.fold())
}

// MatchesTrailer reports whether trailer is this tag's.
func (t *Tag) MatchesTrailer(trailer []byte) bool {
	_ = trailer[TrailerBytes-1]
	return binary.LittleEndian.Uint64(trailer) == uint64(t.Generation) && binary.LittleEndian.Uint64(trailer[8:]) == t.Transfer.fold()
}

func (x TransferID) fold() uint64 {
	return uint64(x.Epoch) ^ bits.RotateLeft64(x.Sequence, 29) ^ uint64(x.Rank)<<56
}
