// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package controllershadow

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/berth-k8s/berth/internal/scheduler/schedulershadow"
)

func reports(t *testing.T) Reports {
	t.Helper()
	w := newWorld(t, "n", "other")
	stuck, needless := w.pod("stuck", "n", 30), w.pod("<b>needless</b>|", "other", 30)
	w.taints("n", "maintenance")
	w.evicted(needless, true)
	w.run(24 * time.Hour)
	w.evicted(stuck, true)
	w.run(time.Minute)
	var text bytes.Buffer
	if err := schedulershadow.New(start).Report(start.Add(time.Hour)).Write(&text, "json"); err != nil {
		t.Fatal(err)
	}
	return Reports{Controller: w.ledger.Report(w.now), Scheduler: PlacementsOf(text.Bytes())}
}

// TestThePageSaysWhatWasFound verifies the page as Markdown and as HTML, including the escaping of
// object names.
func TestThePageSaysWhatWasFound(t *testing.T) {
	r := reports(t)
	var markdown, html strings.Builder
	if err := r.WriteMarkdown(&markdown); err != nil {
		t.Fatal(err)
	}
	if err := r.WriteHTML(&html); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"compared for 24.0 hours, from 2026-01-01 10:00 UTC", "on 2 nodes",
		"| pods that were evicted without a reason at that moment | 1 |",
		"| pods that were due for eviction and still existed a minute later | 1 |",
		"| default/stuck | evicted for maintenance:NoExecute | only Berth |  | still there |",
		`default/<b>needless</b>\| |`, "Placements were compared for 60 minutes",
	} {
		if !strings.Contains(markdown.String(), want) {
			t.Errorf("no %q in\n%s", want, markdown.String())
		}
	}
	if !strings.Contains(html.String(), "<td>default/stuck</td>") || strings.Contains(html.String(), "<b>needless") {
		t.Errorf("%s", html.String())
	}
	if strings.Contains(html.String(), "http") {
		t.Error("the page needs something from elsewhere")
	}
}

// TestReportsAreReadAsTheyAreWritten verifies that Read parses the file of either component, and
// the response of /shadow.
func TestReportsAreReadAsTheyAreWritten(t *testing.T) {
	want := reports(t)
	both, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	alone, err := json.Marshal(want.Controller)
	if err != nil {
		t.Fatal(err)
	}
	var scheduler bytes.Buffer
	if err := schedulershadow.New(start).Report(start.Add(time.Hour)).Write(&scheduler, "json"); err != nil {
		t.Fatal(err)
	}
	var merged Reports
	for _, text := range [][]byte{alone, scheduler.Bytes()} {
		read, err := Read(text)
		if err != nil {
			t.Fatal(err)
		}
		merged.Merge(read)
	}
	again, err := json.Marshal(merged)
	if err != nil || !bytes.Equal(again, both) {
		t.Errorf("%v\n%s\nwant\n%s", err, again, both)
	}
	if read, err := Read(both); err != nil || read.Controller == nil || read.Scheduler == nil {
		t.Errorf("%v, %+v", err, read)
	}
	if _, err := Read([]byte("no report")); err == nil {
		t.Error("anything is read as a report")
	}
}
