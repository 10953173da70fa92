// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simkubelet

import (
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
)

func TestEndingIsToldFromPlainCommandsOnly(t *testing.T) {
	unknown := ending{runFor: -2}
	for text, want := range map[string]ending{
		"true":                               {},
		"/bin/false":                         {exitCode: 1},
		"sleep 5":                            {runFor: 5 * time.Second},
		"sleep 1.5m":                         {runFor: 90 * time.Second},
		"sleep infinity":                     {runFor: forEver},
		"sleep 1e300":                        {runFor: forEver},
		"sleep -5":                           unknown,
		"sleep NaN":                          unknown,
		"sleep 1 2":                          unknown,
		"exit 3":                             unknown, // a shell builtin, not a program
		"sh -c|exit 3":                       {exitCode: 3},
		"/bin/sh -c|exit":                    {},
		"bash -c|exit 256":                   unknown,
		"sh -c|sleep 2; false":               {runFor: 2 * time.Second, exitCode: 1},
		"sh -c|false; true":                  {},
		"sh -c|false && sleep 9":             {exitCode: 1},
		"sh -c|false; exit":                  {exitCode: 1},
		"sh -c|sleep 1 && sleep 2\nexit 7":   {runFor: 3 * time.Second, exitCode: 7},
		"sh -c|echo bye; exit 1; sleep 100":  {exitCode: 1},
		"sh -c|sleep inf; exit 1":            {runFor: forEver},
		"sh -c|sleep 5 &":                    unknown,
		"sh -c|exit $CODE":                   unknown,
		"sh -c|exit $(( 1 / 2 ))":            unknown,
		"sh -c|while true; do sleep 5; done": unknown,
		"sh -c|":                             {},
		"nginx -g":                           unknown,
	} {
		program, script, shell := strings.Cut(text, "|")
		c := &v1.Container{Image: "busybox", Command: strings.Fields(program)}
		if shell {
			c.Args = []string{script}
		}
		got, known := endingOf(c)
		if !known {
			got = unknown
		}
		if got != want {
			t.Errorf("%q: %+v, want %+v", text, got, want)
		}
	}
}

func TestPauseImageRunsForEver(t *testing.T) {
	for image, want := range map[string]bool{
		"registry.k8s.io/pause:3.10": true, "pause": true, "localhost:5000/pause@sha256:0": true, "pauser": false, "nginx": false,
	} {
		if _, known := endingOf(&v1.Container{Image: image}); known != want {
			t.Errorf("%s: %v", image, known)
		}
	}
}

func FuzzEnding(f *testing.F) {
	f.Add("sh", "sleep 1 && exit 2; false")
	f.Add("sleep", "1e9d")
	f.Fuzz(func(t *testing.T, program, argument string) {
		for _, c := range []v1.Container{{Command: []string{program, argument}}, {Command: []string{program, "-c", argument}}} {
			if e, known := endingOf(&c); known && (e.runFor < forEver || e.exitCode < 0 || e.exitCode > 255) {
				t.Errorf("%q: %+v", c.Command, e)
			}
		}
	})
}
