// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package output collects the output of a process while a test reads it.
package output

import (
	"strings"
	"sync"
)

// Buffer is a text that may be written and read concurrently. The zero value is empty.
type Buffer struct {
	mu   sync.Mutex
	text strings.Builder
}

// Write appends to the text.
func (o *Buffer) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(b)
}

// String returns the text so far.
func (o *Buffer) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}
