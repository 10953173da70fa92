// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package configparity compares how kube-scheduler and Berth read configuration files. Each file is
// read by the loader, the validation and the framework of k8s.io/kubernetes v1.37, and by Berth's
// package config. Either both sides must refuse the file, or both must produce the same profiles:
// the same plugins in the same order at every extension point, the same weights and the same
// arguments.
//
// The files include internal/engine/config/testdata, the examples of the documentation, every
// legacy translation, and a number of random files set by -files.
package configparity
