// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package question

import (
	"context"

	"github.com/berth-k8s/berth/internal/engine/config"
	"github.com/berth-k8s/berth/internal/inspect/manifest"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
)

// Open opens the world of a set for one question, by the running configuration. Work in the world
// ends with the context. read reads the files of "apply -f"; it is nil without such files.
func Open(ctx context.Context, set *manifest.Set, running *config.Running, source simulate.Source,
	read func([]string, *manifest.Set) (*manifest.Set, error)) (*simulate.World, error) {
	o := simulate.Options{Profiles: running.Profiles, Seed: 1, Now: source.AsOf.Time, Read: read, Allowance: newAllowance(ctx)}
	if running.Groups != nil {
		o.Gates = running.Groups.Named()
	}
	return simulate.Open(set, o)
}
