// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"bytes"
	"flag"
	"strings"
	"testing"

	"k8s.io/klog/v2"
)

// TestStrangersWriteFewLogLines verifies that errors of connections, which any caller can cause,
// are logged rarely, and truncated.
func TestStrangersWriteFewLogLines(t *testing.T) {
	flags := flag.NewFlagSet("", flag.ContinueOnError)
	klog.InitFlags(flags)
	var out bytes.Buffer
	klog.LogToStderr(false)
	klog.SetOutput(&out)
	t.Cleanup(func() { klog.SetOutput(nil); klog.LogToStderr(true) })

	logger := ErrorLog()
	for range 10_000 {
		logger.Print("http: TLS handshake error from 192.0.2.1: " + strings.Repeat("x", 10_000))
	}
	klog.Flush()
	if lines := strings.Count(out.String(), "\n"); lines < 1 || lines > 3 || out.Len() > 3000 {
		t.Errorf("%d lines of %d bytes", lines, out.Len())
	}
}
