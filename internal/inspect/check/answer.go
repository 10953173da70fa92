// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package check

import (
	"io"

	"github.com/berth-k8s/berth/internal/answer"
)

// Answer is the document that `berth check -o json` prints.
type Answer struct {
	APIVersion string    `json:"apiVersion"`
	Kind       string    `json:"kind"`
	Version    string    `json:"version"` // of the API server
	Findings   []Finding `json:"findings"`
}

// NewAnswer returns the document about a cluster of this version.
func NewAnswer(version string, findings []Finding) *Answer {
	return &Answer{APIVersion: "berth.dev/v1alpha1", Kind: "Check", Version: version, Findings: findings}
}

// Write prints one line per finding, or the document in a format. Findings are in the order of
// Judge.
func (a *Answer) Write(out io.Writer, format string) error {
	return answer.Write(out, format, a, func(people *answer.Page) {
		var rows [][]string
		for _, f := range a.Findings {
			text := f.Message
			// The action follows the finding on the same line.
			if f.Action != "" {
				text += " -> " + f.Action
			}
			rows = append(rows, []string{string(f.Level), f.Topic, text})
		}
		people.Rows("", rows)
	})
}

// Held counts the findings of this level or a more severe one. An unknown level is treated as OK,
// so all findings count.
func (a *Answer) Held(level Level) int {
	held := 0
	for _, f := range a.Findings {
		if gravity[f.Level] >= gravity[level] {
			held++
		}
	}
	return held
}

// gravity orders the levels.
var gravity = map[Level]int{OK: 0, Note: 1, Warning: 2, Problem: 3}
