// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
)

func TestThePageReadsOperationsAsTheCommandLineDoes(t *testing.T) {
	steps, err := parseOnPage(strings.Fields("drain node/node-1 --ignore-daemonsets add-pods --max --like deployment/web -n shop"), "default")
	if err != nil || len(steps) != 2 || steps[0].Operation.Drain == nil || !steps[0].Operation.Drain.IgnoreDaemonSets || steps[1].AddPods.Namespace != "shop" {
		t.Errorf("%+v, %v", steps, err)
	}
}

// TestThePageLimitsTheSearch verifies that a question for nodes to replace has a time limit.
func TestThePageLimitsTheSearch(t *testing.T) {
	steps, err := parseOnPage(strings.Fields("provision --catalog - --replace"), "default")
	if err != nil || len(steps) != 1 || !steps[0].Replace || steps[0].Provision.TimeIsUp == nil || steps[0].Provision.TimeIsUp() {
		t.Errorf("%+v, %v", steps, err)
	}
}

func TestThePageCannotBeTalkedIntoReadingFiles(t *testing.T) {
	for _, words := range []string{
		"drain node/n -f /etc", "-f /etc drain node/n", "drain node/n --kubeconfig /etc/passwd", "--config /etc/passwd drain node/n", "drain node/n --at -5m",
		"drain node/n -o json", "--context other drain node/n", "drain node/n --for 100h", "drain node/n -R", "drain node/n --strict", "drain node/n --feature-gates GenericWorkload=true", "", "drain --help", "-h drain node/n", "dance", "provision --catalog /etc/passwd",
	} {
		if steps, err := parseOnPage(strings.Fields(words), "default"); err == nil {
			t.Errorf("%q: %+v", words, steps)
		}
	}
}

func TestWrongUsageOfThePage(t *testing.T) {
	for args, says := range map[string]string{
		"ui --address everywhere":        "must be an IP address",
		"ui --port 70000":                "--port 70000: must be between",
		"ui --tls-cert-file a":           "must be given together",
		"ui --token-file /etc/hostname0": "--token-file",
		"up --ui-port -3":                "--ui-port -3: must be between",
	} {
		if code, _, stderr := call(strings.Fields(args)...); code == 0 || !strings.Contains(stderr, says) || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%s: %d, %q", args, code, stderr)
		}
	}
}
