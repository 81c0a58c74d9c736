package worker

import (
	"github.com/bulkhead-kv/bulkhead/kv"
)

// omitted names the guards that a worker does without. The zero value omits none,
// and every worker that serves has it: only this package's tests fill it in, to
// measure what the guards cost, and a test holds the other files to that.
type omitted struct {
	digests bool // leaf digests, bound sums, and all that is compared with them
	tags    bool // tags and extents, written and compared at each step
	zeroing bool // zeros in pages that are taken for a local writer
	holds   bool // running steps as holders of their pages
	ledger  bool
}

// clean zeroes a page that was taken for a local writer, before anything reads,
// writes or sends it, and gives it its first tag.
func (b *base) clean(tag kv.Tag) {
	if !b.omit.zeroing {
		b.slab.Zero(tag.Slot)
	}
	b.slab.SetTag(tag.Slot, tag)
}

// hash takes the digest of a page's leaf as soon as a step has written it.
func (b *base) hash(slots []kv.Slot) func(page, layer int) {
	if b.omit.digests {
		return nil
	}
	return func(page, layer int) { b.slab.HashLeaf(slots[page], layer) }
}

// unhashed stands for the root of a page whose digests are omitted: the transfer
// machines accept no zero.
var unhashed = kv.Digest{1}

// root is the digest over a page's leaves.
func (b *base) root(slot kv.Slot) kv.Digest {
	if b.omit.digests {
		return unhashed
	}
	return b.slab.Root(slot)
}

// sum binds a page that leaves to the grant's tag.
func (b *base) sum(key kv.Key, tag kv.Tag, root kv.Digest) kv.Sum {
	if b.omit.digests {
		return kv.Sum{}
	}
	return kv.Bind(key, tag, root)
}

// sound holds every byte of a page that came against its grant and against what
// prefill says that it computed. Afterwards its digests are known.
func (b *base) sound(tag kv.Tag, key kv.Key, root kv.Digest) bool {
	return b.omit.digests || b.slab.Verify(tag.Slot, tag, key) && b.slab.Root(tag.Slot) == root
}

// mark raises the extent that an open page's tag says.
func (b *base) mark(tag kv.Tag) {
	if !b.omit.tags {
		b.slab.SetTag(tag.Slot, tag)
	}
}

// seal gives a page that is complete its tag and, under the pool's own key, the sum
// over its digests.
func (b *base) seal(tag kv.Tag) {
	if b.omit.digests {
		b.mark(tag)
		return
	}
	b.slab.Seal(tag.Slot, tag, b.poolKey)
}

// holdKernel makes a step a holder of the pages of x, so that nothing can free them
// under it.
func (b *base) holdKernel(x kv.TransferID) {
	if !b.omit.holds {
		b.must("hold kernel", b.pool.HoldKernel(x))
	}
}

func (b *base) releaseKernel(x kv.TransferID) {
	if !b.omit.holds {
		b.must("release kernel", b.pool.ReleaseKernel(x))
	}
}
