package vfs

const pageSize = 4096

// content is the bytes of one file in memory. Pages that were never written
// are absent and read as zero. A page may be shared by several contents; only
// the one that made it writes to it.
type content struct {
	size  int64
	pages map[int64]*page
}

type page struct {
	owner *content
	data  [pageSize]byte
}

func newContent() *content { return &content{pages: map[int64]*page{}} }

// clone returns a copy that shares the pages. Neither side owns them
// afterwards, so both copy a page before they change it.
func (c *content) clone() *content {
	d := &content{size: c.size, pages: make(map[int64]*page, len(c.pages))}
	for i, p := range c.pages {
		p.owner = nil
		d.pages[i] = p
	}
	return d
}

func (c *content) own(i int64) *page {
	p := c.pages[i]
	if p == nil {
		p = &page{owner: c}
	} else if p.owner != c {
		p = &page{owner: c, data: p.data}
	}
	c.pages[i] = p
	return p
}

func (c *content) write(b []byte, off int64) {
	c.size = max(c.size, off+int64(len(b)))
	for len(b) > 0 {
		n := copy(c.own(off / pageSize).data[off%pageSize:], b)
		b, off = b[n:], off+int64(n)
	}
}

// read fills b from off and returns how many bytes lie before the end.
func (c *content) read(b []byte, off int64) int {
	if off >= c.size {
		return 0
	}
	b = b[:min(int64(len(b)), c.size-off)]
	for done := 0; done < len(b); {
		at := off + int64(done)
		rest := b[done:]
		in := int(min(int64(len(rest)), pageSize-at%pageSize))
		if p := c.pages[at/pageSize]; p != nil {
			copy(rest[:in], p.data[at%pageSize:])
		} else {
			clear(rest[:in])
		}
		done += in
	}
	return len(b)
}

func (c *content) truncate(size int64) {
	if size < c.size {
		for i := range c.pages {
			if i*pageSize >= size {
				delete(c.pages, i)
			}
		}
		if in := size % pageSize; in != 0 && c.pages[size/pageSize] != nil {
			clear(c.own(size / pageSize).data[in:])
		}
	}
	c.size = size
}
