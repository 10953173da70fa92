// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
)

// full rejects writes, like a full disk or a closed file.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("no space left on device") }

// TestAnAnswerThatCannotBeWrittenIsAnError verifies that an unwritable output, full or closed, is
// reported by the exit code.
func TestAnAnswerThatCannotBeWrittenIsAnError(t *testing.T) {
	town := file(t, "town.yaml", smallTown)
	journal := writeJournal(t, func(s string) string { return s })
	config := file(t, "config.yaml", replayedConfiguration)
	for _, args := range []string{
		"simulate -f " + town, "simulate -o json -f " + town, "simulate -o name -f " + town, "simulate --explain -f " + town,
		"explain pod/big -f " + town, "explain -l !none -f " + town, "explain pod/big -o yaml -f " + town,
		"pending -A -f " + town, "evictions -A -f " + town, "capacity -f " + town, "capacity -o jsonpath={.by} -f " + town,
		"what-if cordon node-1 -f " + town, "rebalance -f " + town,
		"replay " + journal, "replay --pod shop/web-0 " + journal, "replay -o json " + journal, "replay --config " + config + " " + journal,
		"version", "version -o json", "--version", "--help", "help", "", "explain --help", "help what-if drain",
		"scheduler --help", "completion bash", "completion --help",
	} {
		t.Run(args[:min(len(args), 24)], func(t *testing.T) {
			var errs bytes.Buffer
			if code := runCommand(context.Background(), append([]string{"berth"}, strings.Fields(args)...), full{}, &errs); code != exitFailed || !strings.Contains(errs.String(), "no space left") {
				t.Errorf("%s: exit code %d, %s", args, code, &errs)
			}
		})
	}
}
