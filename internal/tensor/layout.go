package tensor

import "fmt"

// A packed matrix holds its rows in groups of 16 and its columns in blocks of 32; missing rows and columns of the last
// group and block are zero. It is up to three parts, each starting at a multiple of 64 bytes:
//
//	quants: [group][block][layout.quantBytes]
//	scales: [group][block][layout.scaleBytes]
//	supers: [group][block/8, rounded up][layout.superBytes]
//
// What a block's quants look like, with row = 0..15 and k = column inside the block:
//
//	F32 F16 BF16   [32 k][16 rows] elements
//	I8 I8Min       [16 pairs][16 rows][2] int8, k = 2 pair + i
//	S4 U4Min U4K   [4][16 rows][4] bytes; byte (j, row, i): low nibble k = 4j + c, high nibble k = 16 + 4j + c, where c is
//	               0, 2, 1, 3 for i = 0..3: each 16 bits hold a nibble of four pairs' first or second column, and so the
//	               same bits of 32 hold a pair. S4 is in two's complement.
//	S6K            [4 quads of pairs][3][32] bytes. Inside 32 bytes, byte 4 (row%8) + 2 i + row/8 belongs to (row, element i
//	               of a pair). The upper six bits of vector v are pair v of the quad, v = 0..2, and its lower two are bits
//	               2v and 2v+1 of the quad's last pair. Values are in two's complement.
//
// and its scales:
//
//	I8 S4     [16] f16 d                      value = d q
//	U4Min     [2][16] f16 d, m                value = d q + m
//	I8Min     [2][16] f32 d, m                value = d q + m
//	U4K       [2][16] uint8 sc, mn            value = D sc q - M mn, supers [2][16] f16 D, M
//	S6K       [2][16] int8 sc (k < 16, k >= 16)  value = D sc q, supers [16] f16 D
type layout uint8

const (
	layoutF32 layout = iota
	layoutF16
	layoutBF16
	layoutI8
	layoutI8Min
	layoutS4
	layoutU4Min
	layoutU4K
	layoutS6K
)

const (
	groupRows   = 16 // rows of a group
	blockCols   = 32 // columns of a block
	superBlocks = 8  // blocks of a super-block
	partAlign   = 64 // bytes
)

// layoutSpec is the sizes in bytes of what the three parts hold a block, and a super-block, of 16 rows.
type layoutSpec struct {
	quantBytes, scaleBytes, superBytes int
	class                              Class
}

func (l layout) spec() layoutSpec {
	switch l {
	case layoutF32:
		return layoutSpec{2048, 0, 0, ClassFloat}
	case layoutF16, layoutBF16:
		return layoutSpec{1024, 0, 0, ClassFloat}
	case layoutI8:
		return layoutSpec{512, 32, 0, ClassInt16}
	case layoutI8Min:
		return layoutSpec{512, 128, 0, ClassInt16}
	case layoutS4:
		return layoutSpec{256, 32, 0, ClassInt16}
	case layoutU4Min:
		return layoutSpec{256, 64, 0, ClassInt16}
	case layoutU4K:
		return layoutSpec{256, 32, 64, ClassInt16}
	case layoutS6K:
		return layoutSpec{384, 32, 32, ClassInt16}
	}
	panic(fmt.Sprintf("tensor: layout %d has no specification", l))
}

// shape is the extents of a packed matrix in groups, blocks and super-blocks.
type shape struct{ groups, blocks, superCount int }

func shapeOf(rows, cols int) shape {
	blocks := ceilDiv(cols, blockCols)
	return shape{ceilDiv(rows, groupRows), blocks, ceilDiv(blocks, superBlocks)}
}

// parts are the offsets of a packed matrix's parts: quants at 0, then scales, supers and the end.
func (l layout) parts(s shape) (scales, supers, end int) {
	ls := l.spec()
	scales = alignUp(s.groups*s.blocks*ls.quantBytes, partAlign)
	supers = scales + alignUp(s.groups*s.blocks*ls.scaleBytes, partAlign)
	return scales, supers, supers + alignUp(s.groups*s.superCount*ls.superBytes, partAlign)
}

func ceilDiv(a, b int) int { return (a + b - 1) / b }

func alignUp(n, align int) int { return (n + align - 1) / align * align }
