package manifest

// PodAt returns where in the input the i-th of Pods is, or the workload that it was created
// for. The index is that of the list after Expand, if the set was expanded.
func (s *Set) PodAt(i int) (file string, line int) {
	at := s.places["Pod"][i]
	return s.fileName(at.file), int(at.line)
}
