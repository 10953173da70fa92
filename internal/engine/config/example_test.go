// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"fmt"

	"github.com/berth-k8s/berth/internal/engine/config"
)

// The example file has two profiles, the second without scoring. A pod's schedulerName selects its
// profile.
func ExampleParse() {
	file := []byte(`
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- schedulerName: default-scheduler
- schedulerName: no-scoring-scheduler
  plugins:
    preScore: {disabled: [{name: '*'}]}
    score: {disabled: [{name: '*'}]}
`)
	c, err := config.Parse("sched.yaml", file, config.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, profile := range c.Profiles {
		fmt.Printf("%s: %d filters, %d scorers\n", profile.SchedulerName, len(profile.Filters), len(profile.Scorers))
	}

	_, err = config.Parse("sched.yaml", []byte("apiVersion: v1\nkind: Policy\npriorities: [{name: Fastest, weight: 1}]"), config.Options{})
	fmt.Println(err)

	// Output:
	// default-scheduler: 14 filters, 9 scorers
	// no-scoring-scheduler: 14 filters, 0 scorers
	// sched.yaml: priorities[0].name: invalid configuration: Priority type not found for "Fastest"
}
