// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Command power-scheduler is Berth's scheduler with a custom plugin compiled in. It takes the flags
// and configuration files of `berth scheduler`.
package main

import (
	"os"

	"github.com/berth-k8s/berth/examples/plugin/powerbudget"
	"github.com/berth-k8s/berth/scheduler"
)

func main() {
	if err := scheduler.NewCommand(scheduler.WithPlugin(powerbudget.Name, powerbudget.New)).Execute(); err != nil {
		os.Exit(1)
	}
}
