// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/engine/config"
)

// Source describes the origin of the state behind a result: its location, time and configuration.
// Every result has a Source, so that it can be assessed later.
type Source struct {
	// From is the place the state was read from: an API server, or files.
	From string `json:"from"`
	// AsOf is the time of the state; zero if the files do not contain it.
	AsOf metav1.Time `json:"asOf"`
	// ResourceVersion is the version of the newest list read; empty for files.
	ResourceVersion string `json:"resourceVersion,omitempty"`
	// Assumed describes the assumed scheduler configuration. It is empty if the configuration is a
	// running scheduler's, or was named by the user.
	Assumed string `json:"assumed,omitempty"`
	// Stopped lists the schedulers that no longer run. The result applies once they run again.
	Stopped []config.Stopped `json:"stopped,omitempty"`
}

// IsStopped reports whether the scheduler of this name no longer runs.
func (s *Source) IsStopped(scheduler string) bool {
	return slices.ContainsFunc(s.Stopped, func(stopped config.Stopped) bool { return slices.Contains(stopped.Names, scheduler) })
}

// String returns the last line of the text output. Times are in UTC.
func (s Source) String() string {
	text := "Read from " + s.From + " as of " + s.AsOf.UTC().Format("2006-01-02 15:04:05Z")
	if s.ResourceVersion != "" {
		text += ", resourceVersion " + s.ResourceVersion
	}
	return text
}
