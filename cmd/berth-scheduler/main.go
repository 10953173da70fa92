// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Command berth-scheduler is `berth scheduler` alone: for images and manifests
// of the scheduler, where the rest of berth (kubectl, for example) would only take memory. `berth
// up` runs it if it is in the folder of berth.
package main

import (
	"os"

	"github.com/berth-k8s/berth/scheduler"
)

func main() { os.Exit(scheduler.Main()) }
