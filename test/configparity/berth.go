// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package configparity

import (
	"github.com/berth-k8s/berth/internal/engine/config"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// readBerth reads a file with Berth's code and returns the profiles.
func readBerth(file string) (map[string]Profile, error) {
	c, err := config.Load(file, outsideBerth)
	if err != nil {
		return nil, err
	}

	profiles := map[string]Profile{}
	for i, made := range c.Profiles {
		p := Profile{At: map[string][]string{}, Weights: map[string]int64{}, Args: map[string]string{}}
		for point, names := range made.At {
			p.At[point.String()] = names
		}
		for _, name := range made.At[plugins.Score] {
			p.Weights[name] = made.Weights[name]
		}
		for _, plugin := range c.Spec.Profiles[i].PluginConfig {
			if plugin.Args.Object == nil {
				continue
			}
			if p.Args[plugin.Name], err = argsJSON(plugin.Args.Object); err != nil {
				return nil, err
			}
		}
		profiles[made.SchedulerName] = p
	}

	return profiles, nil
}
