// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Command berth-scheduler contains only `berth scheduler`. It is meant for the scheduler's images
// and manifests, where the rest of berth (kubectl, for example) would waste memory. `berth up` runs
// it if it is in the folder of the berth binary.
package main

import (
	"os"

	"github.com/berth-k8s/berth/scheduler"
)

func main() { os.Exit(scheduler.Main()) }
