// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"io"
	"strings"
	"testing"

	"k8s.io/klog/v2"
)

// lines is a log of an uncomparable type: comparing two values panics.
type lines struct {
	_   []func(string)
	log *strings.Builder
}

func (l lines) Write(line []byte) (int, error) { return l.log.Write(line) }

// TestTwoControlPlanesMayShareALog verifies that the second control plane keeps the log when the
// first stops.
func TestTwoControlPlanesMayShareALog(t *testing.T) {
	var log strings.Builder
	for what, shared := range map[string]io.Writer{"a log": &log, "one that cannot be compared": lines{log: &log}} {
		t.Run(what, func(t *testing.T) {
			log.Reset()
			stopFirst := sendLogs(shared, 0)
			stopSecond := sendLogs(shared, 0)
			defer stopSecond()

			stopFirst()
			klog.Background().Info("The second one goes on")
			klog.Flush()
			if !strings.Contains(log.String(), "The second one goes on") {
				t.Errorf("logged: %q", log.String())
			}
		})
	}
}
