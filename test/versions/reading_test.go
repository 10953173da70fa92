// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package versions

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestAnAuditLogIsReadOncePerRequest verifies that requests passes a watch with two lines only once
// and ignores an incomplete line, and that writes are distinguished from reads.
func TestAnAuditLogIsReadOncePerRequest(t *testing.T) {
	log := filepath.Join(t.TempDir(), "audit.log")
	const user = `"user":{"username":"u"}`
	text := strings.Join([]string{
		`{"auditID":"1","stage":"ResponseStarted","verb":"watch",` + user + `,"objectRef":{"resource":"pods"},"responseStatus":{"code":200}}`,
		`{"auditID":"1","stage":"ResponseComplete","verb":"watch",` + user + `,"objectRef":{"resource":"pods"},"responseStatus":{"code":200}}`,
		`{"auditID":"2","verb":"get","requestURI":"/readyz?verbose",` + user + `,"responseStatus":{"code":200}}`,
		`{"auditID":"3","verb":"create",` + user + `,"objectRef":{"resource":"pods","subresource":"binding"},"responseStatus":{"code":403}}`,
		`{"auditID":"4","verb":"patch",` + user,
	}, "\n")
	if err := os.WriteFile(log, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var got []string
	if err := requests(log, func(r *request) {
		got = append(got, fmt.Sprintf("%s %s %v %d", r.Verb, r.what(), r.writes(), r.ResponseStatus.Code))
	}); err != nil {
		t.Fatal(err)
	}
	if want := "watch pods false 200, get /readyz false 200, create pods/binding true 403"; strings.Join(got, ", ") != want {
		t.Errorf("read as %q, want %q", got, want)
	}
}

// TestAScrapeIsReadByFamily verifies that families collects the labels of all samples of a metric,
// without the label for the bounds of buckets.
func TestAScrapeIsReadByFamily(t *testing.T) {
	const scrape = `# HELP scheduler_pending_pods [STABLE] Pods.
# TYPE scheduler_pending_pods gauge
scheduler_pending_pods{queue="active"} 0
# TYPE scheduler_plain_total counter
scheduler_plain_total 3
# TYPE scheduler_took_seconds histogram
scheduler_took_seconds_bucket{profile="p",result="a \"b\", c=\"d\"",le="0.1"} 1
scheduler_took_seconds_sum{profile="p",result="x"} 1
`
	var got []string
	for _, name := range []string{"scheduler_pending_pods", "scheduler_plain_total", "scheduler_took_seconds"} {
		f := families(scrape)[name]
		got = append(got, fmt.Sprintf("%s %v", f.kind, f.labels))
	}
	if want := "gauge map[queue:true], counter map[], histogram map[profile:true result:true]"; strings.Join(got, ", ") != want {
		t.Errorf("read as %q, want %q", got, want)
	}
}
