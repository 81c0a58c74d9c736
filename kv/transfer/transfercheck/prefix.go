package transfercheck

import (
	"fmt"
	"slices"

	"github.com/bulkhead-kv/bulkhead/kv"
	"github.com/bulkhead-kv/bulkhead/kv/internal/guard"
	"github.com/bulkhead-kv/bulkhead/kv/pool"
	"github.com/bulkhead-kv/bulkhead/kv/transfer"
)

// Sharing is the part of a world that has to do with prefix caches and with who
// reads pages beside their owner. The zero value has neither.
type Sharing struct {
	Shared      int   // first blocks that all prompts of one tenant have in common
	Tenants     []int // of each request, 1 or more; none: all are of tenant 1
	DecodeCache bool  // shared blocks of an answered request stay in decode's cache
	SourceCache bool  // shared blocks go into prefill's cache as soon as they are computed
	Scrub       bool  // a background reader holds a page of decode, one at a time
	MixedCache  bool  // broken: looking up a prefix gives whatever tenant's pages
}

// entry is a page of a cache. A look-up begins with the tenant.
type entry struct {
	tenant kv.TenantTag
	block  uint8
	ref    kv.PageRef
	x      kv.TransferID // whose tags the page has
}

func refsOf(entries []entry) (refs []kv.PageRef) {
	for _, e := range entries {
		refs = append(refs, e.ref)
	}
	return refs
}

// common marks content that is not of one request: it is whose tenant's instead.
const common = 0x80

func (c *Config) tenant(request uint8) kv.TenantTag {
	if len(c.Tenants) == 0 {
		return 1
	}
	return kv.TenantTag(c.Tenants[request-1])
}

// wanted is what a block of a request's prompt holds.
func (w *World) wanted(request uint8, block int) content {
	if block < w.config.Shared {
		request = common | uint8(w.config.tenant(request))
	}
	return content{request: request, block: uint8(block)}
}

// table is a sequence's page table.
func (j *job) table() []kv.PageRef { return slices.Concat(refsOf(j.prefix), j.pages, j.grown) }

// pins is the prefix of a request's prompt that a cache has, from a block on and
// without the last block, and that the pool lets its tenant pin.
func (w *World) pins(p *pool.Pool, cache []entry, request uint8, from int) (list []entry) {
	tenant := w.config.tenant(request)
	for block := from; block < w.config.Shared && block < w.config.Requests[request-1]-1; block++ {
		i := slices.IndexFunc(cache, func(e entry) bool { return int(e.block) == block && (e.tenant == tenant || w.config.MixedCache) })
		if i < 0 {
			break
		}
		list = append(list, cache[i])
	}
	if len(list) > 0 && p.Clone().Pin(kv.TransferID{Epoch: 1, Sequence: 1}, tenant, refsOf(list)) != nil {
		return nil // refused: go on without
	}
	return list
}

func (w *World) decodePins(i int, request uint8) []entry {
	return w.pins(w.decodes[i].pool, w.decodes[i].cache, request, 0)
}

// pin makes x a reader of what its worker found in its cache.
func (w *World) pin(p *pool.Pool, x kv.TransferID, tenant kv.TenantTag, pins []entry) {
	if len(pins) > 0 {
		w.must(p.Pin(x, tenant, refsOf(pins)))
	}
}

// insert puts a sealed page into a cache that does not have its block yet, and
// says whether it did.
func (w *World) insert(p *pool.Pool, cache []entry, e entry) ([]entry, bool) {
	i, there := slices.BinarySearchFunc(cache, e, func(a, b entry) int {
		return int(a.tenant)<<8 + int(a.block) - int(b.tenant)<<8 - int(b.block)
	})
	if there {
		return cache, false
	}
	w.must(p.Cache(e.ref))
	return slices.Insert(slices.Clip(cache), i, e), true
}

// keep gives the shared blocks of an answered request to decode's cache.
func (w *World) keep(d *decode, j *job) {
	if !w.config.DecodeCache || !j.sound {
		return
	}
	for k, ref := range j.pages {
		if block := len(j.prefix) + k; block < w.config.Shared {
			d.cache, _ = w.insert(d.pool, d.cache, entry{w.config.tenant(j.request), uint8(block), ref, j.x})
		}
	}
	j.sound = false
}

// keepSource gives shared blocks that prefill has computed to its cache. They may
// be on their way already, and go on being so.
func (w *World) keepSource(p *prefill, j *sourceJob) {
	if !w.config.SourceCache {
		return
	}
	tenant := w.config.tenant(j.request)
	for int(j.grant.FirstBlock)+j.pinned < w.config.Shared {
		e := entry{tenant, uint8(int(j.grant.FirstBlock) + j.pinned), j.pages[j.pinned], j.x}
		w.must(p.pool.Write(e.ref, kv.PageTokens))
		w.must(p.pool.Seal(e.ref))
		var inserted bool
		if p.cache, inserted = w.insert(p.pool, p.cache, e); !inserted {
			return // another transfer's page is there
		}
		w.pin(p.pool, j.x, tenant, []entry{e})
		j.pinned++
	}
}

// cacheActions lists evictions, at any time, and the scrub's.
func (w *World) cacheActions(list []Action) []Action {
	for i, d := range w.decodes {
		for k, e := range d.cache {
			if w.evictable(d.pool, e.ref) {
				list = append(list, Action{kind: evict, a: i, b: k})
			}
		}
		list = w.scrubActions(list, i)
	}
	for i, p := range w.prefills {
		for k, e := range p.cache {
			if w.evictable(p.pool, e.ref) {
				list = append(list, Action{kind: evictSource, a: i, b: k})
			}
		}
	}
	return list
}

// evictable asks the pool, which decides.
func (w *World) evictable(p *pool.Pool, ref kv.PageRef) bool { return p.Clone().Evict(ref) == nil }

func (w *World) scrubActions(list []Action, i int) []Action {
	d := w.decodes[i]
	if d.scrubbed.Generation != 0 {
		return append(list, Action{kind: scrubEnds, a: i})
	}
	for slot := range w.config.Pages {
		if state := d.pool.Page(kv.Slot(slot)).State; w.config.Scrub && (state == pool.Sealed || state == pool.Cached) {
			list = append(list, Action{kind: scrub, a: i, b: slot})
		}
	}
	return list
}

func (w *World) applyCache(a Action) {
	i := uint8(a.a)
	switch a.kind {
	case evict:
		d := w.mutDecode(i)
		w.must(d.pool.Evict(d.cache[a.b].ref))
		d.cache = slices.Delete(d.cache, a.b, a.b+1)
	case evictSource:
		p := w.mutPrefill(i)
		w.must(p.pool.Evict(p.cache[a.b].ref))
		p.cache = slices.Delete(p.cache, a.b, a.b+1)
	case scrub:
		d := w.mutDecode(i)
		d.scrubbed = d.pool.Page(kv.Slot(a.b)).Ref
		w.must(d.pool.Hold(d.scrubbed, pool.Scrub))
	case scrubEnds:
		w.scrubEnds(i)
	default:
	}
}

// scrubEnds gives up the scrub's page, and its owner's pages when they have been
// waiting for that.
func (w *World) scrubEnds(i uint8) {
	d := w.mutDecode(i)
	w.must(d.pool.Unhold(d.scrubbed, pool.Scrub))
	x := d.pool.Page(d.scrubbed.Slot).X
	d.scrubbed = kv.PageRef{}
	if j := d.job(x); j != nil && j.owed && !j.kernel {
		j.owed = false
		w.release(d, x)
	}
}

// scrubs reports whether the scrub is all that keeps a transfer's pages.
func (d *decode) scrubs(j *job) bool { return slices.Contains(j.pages, d.scrubbed) && !j.kernel }

// pinnedTagsOK compares the tags of a sequence's pinned pages with the cache's.
func (d *decode) pinnedTagsOK(j *job) bool {
	for _, e := range j.prefix {
		if h := d.memory[e.ref.Slot].header; h.x != e.x || h.generation != e.ref.Generation {
			return false
		}
	}
	return true
}

// startedOnLostPins: a pinned page is still the cache's when decode starts on it.
func (w *World) startedOnLostPins(d *decode, j *job) {
	for _, e := range j.prefix {
		if page := d.pool.Page(e.ref.Slot); page.Ref != e.ref || page.State != pool.Cached {
			w.fail("SoundStart: decode starts on a pinned page that is no longer in the cache")
		}
	}
}

// pinned calls visit for every page that a transfer has pinned, at either side.
func (w *World) pinned(visit func(p *pool.Pool, ref kv.PageRef, x kv.TransferID, request uint8) error) error {
	for _, d := range w.decodes {
		for k := range d.jobs {
			for _, e := range d.jobs[k].prefix {
				if err := visit(d.pool, e.ref, d.jobs[k].x, d.jobs[k].request); err != nil {
					return err
				}
			}
		}
	}
	for _, p := range w.prefills {
		for k := range p.jobs {
			for _, ref := range p.jobs[k].pages[:p.jobs[k].pinned] {
				if err := visit(p.pool, ref, p.jobs[k].x, p.jobs[k].request); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// pinsHeld: a page that a transfer has pinned stays in the cache while it is.
func pinsHeld(w *World) error {
	return w.pinned(func(p *pool.Pool, ref kv.PageRef, x kv.TransferID, _ uint8) error {
		if page := p.Page(ref.Slot); page.Ref != ref || page.State != pool.Cached {
			return fmt.Errorf("%s has pinned page %d, which is %v", showX(x), ref.Slot, page.State)
		}
		return nil
	})
}

// ownCache: a page that a transfer has pinned is of its own tenant.
func ownCache(w *World) error {
	return w.pinned(func(p *pool.Pool, ref kv.PageRef, x kv.TransferID, request uint8) error {
		if page := p.Page(ref.Slot); page.Ref == ref && page.Tenant != w.config.tenant(request) {
			return fmt.Errorf("%s of tenant %d has pinned page %d of tenant %d", showX(x), w.config.tenant(request), ref.Slot, page.Tenant)
		}
		return nil
	})
}

// scrubHeld: a page stays what it is while the scrub reads it.
func scrubHeld(w *World) error {
	for i, d := range w.decodes {
		if page := d.pool.Page(d.scrubbed.Slot); d.scrubbed.Generation != 0 && (page.Ref != d.scrubbed || page.State == pool.Free) {
			return fmt.Errorf("the scrub of D%d reads page %d, which is %v", i, d.scrubbed.Slot, page.State)
		}
	}
	return nil
}

// decodeCache is the form of what decode's cache, pins and scrub refer to.
func (e *encoder) decodeCache(key []byte, i int) []byte {
	d := e.w.decodes[i]
	entries := func(list []entry) {
		for _, n := range list {
			h := d.memory[n.ref.Slot].header
			key = append(key, 0xe0, byte(n.tenant), n.block, bit(h.x == n.x && h.generation == n.ref.Generation))
			key = append(key, e.page(i, n.ref))
		}
	}
	entries(d.cache)
	for k := range d.jobs {
		key = append(key, 0xe1)
		entries(d.jobs[k].prefix)
	}
	if d.scrubbed.Generation != 0 {
		key = append(key, 0xe2, e.page(i, d.scrubbed))
	}
	return key
}

// sourceCache is the form of what prefill's cache and pins refer to.
func (e *encoder) sourceCache(key []byte, i int) []byte {
	p := e.w.prefills[i]
	for _, n := range p.cache {
		key = append(key, 0xe3, byte(n.tenant), n.block, byte(n.ref.Slot))
	}
	for k := range p.jobs {
		key = append(key, 0xe4)
		for _, ref := range p.jobs[k].pages[:p.jobs[k].pinned] {
			key = append(key, byte(ref.Slot), bit(p.pool.Page(ref.Slot).Ref == ref))
		}
	}
	return key
}

// markCache names the pages of decode's cache, pins and scrub.
func (d *decode) markCache(refer func(kv.Slot, kv.Generation)) {
	for _, n := range d.cache {
		refer(n.ref.Slot, n.ref.Generation)
	}
	for k := range d.jobs {
		for _, n := range d.jobs[k].prefix {
			refer(n.ref.Slot, n.ref.Generation)
		}
	}
	if d.scrubbed.Generation != 0 {
		refer(d.scrubbed.Slot, d.scrubbed.Generation)
	}
}

// finished notes that an answer was the request's own, so that its pages are good
// for others.
func (j *job) finished(code transfer.Code) { j.sound = code == transfer.CodeDone }

// describeCache tells an action on a cache.
func (w *World) describeCache(a Action) string {
	switch a.kind {
	case evict:
		e := w.decodes[a.a].cache[a.b]
		return fmt.Sprintf("block %d of tenant %d, page %d of D%d", e.block, e.tenant, e.ref.Slot, a.a)
	case evictSource:
		e := w.prefills[a.a].cache[a.b]
		return fmt.Sprintf("block %d of tenant %d, page %d of P%d", e.block, e.tenant, e.ref.Slot, a.a)
	case scrub:
		return fmt.Sprintf("page %d of D%d", a.b, a.a)
	default:
	}
	return fmt.Sprintf("D%d", a.a)
}

// sharing is the smallest world in which one request reads what another has left.
func sharing(name string, t Transport, vary func(*Config)) Config {
	return small(name, t, func(c *Config) {
		c.Requests, c.Pages, c.Shared, c.DecodeCache = []int{2, 2}, 3, 1, true
		vary(c)
	})
}

// sourceSharing is the smallest world in which two transfers send one page.
func sourceSharing(name string, t Transport, vary func(*Config)) Config {
	return small(name, t, func(c *Config) {
		c.Requests, c.Pages, c.SourcePages, c.Shared, c.SourceCache = []int{2, 2}, 4, 3, 1, true
		vary(c)
	})
}

// PrefixWorlds are the configurations of prefix reuse on either side, with scrub.
func PrefixWorlds(t Transport) []Config {
	return []Config{
		sharing("prefix at decode", t, func(c *Config) { c.Pages, c.SourcePages = 2, 2 }),
		sharing("prefix at decode, crash of prefill", t, func(c *Config) { c.PrefillCrashes = 1 }),
		sharing("prefix at decode, crash of decode", t, func(c *Config) { c.DecodeCrashes, c.Pages = 1, 2 }),
		sharing("prefix at decode, false suspicion", t, func(c *Config) { c.Suspicions, c.Cancels = 1, false }),
		sharing("prefix at decode, two tenants", t, func(c *Config) { c.Tenants, c.MixedCache = []int{1, 2}, true }),
		sharing("prefix at decode, scrub", t, func(c *Config) { c.Scrub, c.Pages = true, 2 }),
		sourceSharing("prefix at prefill", t, func(*Config) {}),
		sourceSharing("prefix at prefill, crash of prefill", t, func(c *Config) { c.PrefillCrashes, c.Cancels = 1, false }),
		sourceSharing("prefix at prefill, two tenants", t, func(c *Config) { c.Tenants, c.MixedCache, c.Cancels = []int{1, 2}, true, false }),
	}
}

// pinProofs shows what the guards of the prefix caches are for.
func pinProofs() []Proof {
	tenants := func(c *Config) { c.Tenants, c.MixedCache, c.Pages = []int{1, 2}, true, 2 }
	small := func(c *Config) { c.Pages = 3 }
	return []Proof{
		{guard.Tenant, "OwnCache", nil, "looking up a prefix gives another tenant's page", sharing("two tenants", OneSided, tenants)},
		{guard.Readers, "PinsHeld", nil, "", sharing("prefix at decode", OneSided, small)},
		{guard.Pins, "SoundStart", []guard.Guard{guard.Readers}, "", sharing("prefix at decode", OneSided, small)},
	}
}
