// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package configparity compares Berth's reading of configuration files with kube-scheduler's: the
// same file is read by the loader, the validation and the framework of k8s.io/kubernetes v1.37 and
// by package config of Berth. Either both must refuse it, or both must produce the same profiles,
// with the same plugins in the same order at every extension point, the same weights and the same
// arguments.
//
// The files include internal/engine/config/testdata, the examples of the documentation, every
// legacy translation, and a number of random files set by -files.
package configparity
