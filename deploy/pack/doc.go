// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package pack builds the image of Berth, without Docker and without a registry: static binaries in
// one layer, nothing else, as an OCI layout in a tar file that containerd, Docker and registry
// tools load. The same sources give the same bytes.
//
// Its tests render the Helm chart and the kustomization, compare the two, and keep the renders in
// testdata/. It is a separate Go module, so that importers of Berth do not depend on Helm's and the
// registries' libraries.
package pack
