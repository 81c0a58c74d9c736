package kv

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func drawTag(t *rapid.T) Tag {
	return Tag{
		Layout: rapid.Uint16().Draw(t, "layout"), Tokens: rapid.Uint8Range(0, PageTokens).Draw(t, "tokens"),
		Transfer: TransferID{Epoch: Epoch(rapid.Uint64().Draw(t, "epoch")), Sequence: rapid.Uint64().Draw(t, "sequence"),
			Rank: rapid.Uint8().Draw(t, "rank")},
		Generation: Generation(rapid.Uint64().Draw(t, "generation")), Tenant: TenantTag(rapid.Uint64().Draw(t, "tenant")),
		Slot: Slot(rapid.Uint32().Draw(t, "slot")), Block: rapid.Uint32Range(0, BlockMax).Draw(t, "block"),
	}
}

func TestTagRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := drawTag(t)
		var header [HeaderBytes]byte
		want.Put(header[:])
		got, ok := ParseTag(header[:])
		if !ok || !want.Matches(header[:]) {
			t.Fatalf("a tag's own header is not accepted: %+v", want)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("parsed tag differs (-want +got):\n%s", diff)
		}
	})
}

// Each single bit of the 48 tag bytes, flipped, makes the header somebody else's,
// and the sum another one.
func TestEveryTagBitMatters(t *testing.T) {
	tag := Tag{Layout: 7, Tokens: 5, Transfer: TransferID{Epoch: 11, Sequence: 12, Rank: 1}, Generation: 13, Tenant: 14, Slot: 15, Block: 16}
	var header [HeaderBytes]byte
	tag.Put(header[:])
	sum := Bind(Key{1}, tag, Digest{2})
	for bit := range tagBytes * 8 {
		flipped := header
		flipped[bit/8] ^= 1 << (bit % 8)
		if tag.Matches(flipped[:]) {
			t.Errorf("header with bit %d flipped still matches", bit)
		}
		if other, ok := ParseTag(flipped[:]); ok && Bind(Key{1}, other, Digest{2}) == sum {
			t.Errorf("the sum does not cover bit %d of the tag", bit)
		}
	}
}

func TestSumCoversKeyAndRoot(t *testing.T) {
	sum := Bind(Key{1}, Tag{}, Digest{2})
	if Bind(Key{3}, Tag{}, Digest{2}) == sum || Bind(Key{1}, Tag{}, Digest{3}) == sum {
		t.Fatal("a sum made under another key or over another root is the same")
	}
}

func TestTrailerTellsGenerationAndTransferApart(t *testing.T) {
	tag := Tag{Generation: 5, Transfer: TransferID{Epoch: 6, Sequence: 7, Rank: 0}}
	var trailer [TrailerBytes]byte
	tag.PutTrailer(trailer[:])
	if !tag.MatchesTrailer(trailer[:]) {
		t.Fatal("a tag's own trailer is not accepted")
	}
	for _, change := range []func(*Tag){
		func(t *Tag) { t.Generation++ }, func(t *Tag) { t.Transfer.Epoch++ },
		func(t *Tag) { t.Transfer.Sequence++ }, func(t *Tag) { t.Transfer.Rank++ },
	} {
		other := tag
		change(&other)
		if other.MatchesTrailer(trailer[:]) {
			t.Errorf("trailer of %+v is accepted for %+v", tag, other)
		}
	}
}

func TestRootDependsOnOrder(t *testing.T) {
	a, b := LeafDigest([]byte("a")), LeafDigest([]byte("b"))
	if Root([]Digest{a, b}) == Root([]Digest{b, a}) {
		t.Fatal("root is the same for swapped leaves")
	}
}

func TestLayoutSizes(t *testing.T) {
	l := Layout{Layers: 30, KVHeads: 3, KeyDim: 64, ValueDim: 64}
	if err := l.Validate(); err != nil {
		t.Fatal(err)
	}
	if got, want := l.BodyBytes(), 30*2*3*64*16*2; got != want {
		t.Errorf("body is %d bytes, want %d", got, want)
	}
	if l.StrideBytes()%64 != 0 || l.StrideBytes() < l.FrameBytes() {
		t.Errorf("stride %d does not hold a frame of %d in whole cache lines", l.StrideBytes(), l.FrameBytes())
	}
	if (Layout{}).Validate() == nil {
		t.Error("a layout without dimensions is accepted")
	}
}

func TestExtentAt(t *testing.T) {
	for _, c := range []struct{ tokens, index, want int }{{0, 0, 0}, {1, 0, 1}, {16, 0, 16}, {17, 0, 16}, {17, 1, 1}, {17, 2, 0}, {32, 1, 16}} {
		if got := ExtentAt(c.tokens, c.index); got != c.want {
			t.Errorf("%d tokens write %d of page %d, want %d", c.tokens, got, c.index, c.want)
		}
	}
}

func BenchmarkTagMatches(b *testing.B) {
	tag := Tag{Generation: 5, Transfer: TransferID{Epoch: 6, Sequence: 7}}
	var header [HeaderBytes]byte
	tag.Put(header[:])
	for b.Loop() {
		if !tag.Matches(header[:]) {
			b.Fatal("no match")
		}
	}
}
