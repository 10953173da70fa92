// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package manifest

// PodAt returns the place in the input of the i-th pod of Pods, or of the workload that created it.
// After Expand, the index refers to the expanded list.
func (s *Set) PodAt(i int) (file string, line int) {
	at := s.places["Pod"][i]
	return s.fileName(at.file), int(at.line)
}
