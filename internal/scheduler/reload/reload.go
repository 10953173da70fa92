// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package reload

import (
	"bytes"
	"context"
	"time"
)

const (
	// every is the interval between reads of the file, which is small and usually in the page
	// cache.
	every = 250 * time.Millisecond
	// still is the time for which changed content must be stable before it counts.
	still = time.Second
	// atLatest is the time after which a change counts even if it is not stable.
	atLatest = 10 * time.Second
)

// Follower applies the changes of a file.
type Follower struct {
	// Read reads the file.
	Read func() ([]byte, error)
	// Apply applies the content, or returns the reason for refusing it.
	Apply func(data []byte) error
	// OnChange is called after each change; err is nil if the change was applied.
	OnChange func(err error)
}

// content is the result of reading the file once.
type content struct {
	data []byte
	err  string
}

// equal compares content, or the errors of two readings.
func (c content) equal(other content) bool {
	return bytes.Equal(c.data, other.data) && c.err == other.err
}

// Run follows the file until the context ends. inUse is the content in effect when Run is called.
func (f *Follower) Run(ctx context.Context, inUse []byte) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	judged := content{data: inUse} // the last applied or refused content
	seen := judged                 // the result of the last read
	var since, changed time.Time   // when seen last changed, and when it began to differ from judged
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}

		now, read := time.Now(), f.read()
		if !read.equal(seen) {
			if changed.IsZero() {
				changed = now
			}
			seen, since = read, now
		}
		switch {
		case seen.equal(judged):
			changed = time.Time{}
		case now.Sub(since) >= still, now.Sub(changed) >= atLatest:
			changed, judged = time.Time{}, seen
			inUse = f.judge(seen, inUse)
		}
	}
}

// read reads the file once.
func (f *Follower) read() content {
	data, err := f.Read()
	if err != nil {
		return content{err: err.Error()}
	}
	return content{data: data}
}

// judge applies or refuses the content, and returns the content in use afterwards. Content already
// in use is not applied again.
func (f *Follower) judge(c content, inUse []byte) []byte {
	switch {
	case c.err != "":
		f.OnChange(unreadable(c.err))
		return inUse
	case bytes.Equal(c.data, inUse):
		f.OnChange(nil)
		return inUse
	}
	if err := f.Apply(c.data); err != nil {
		f.OnChange(err)
		return inUse
	}
	f.OnChange(nil)
	return c.data
}

// unreadable is the reported error of a file that could not be read.
type unreadable string

func (u unreadable) Error() string { return string(u) }
