package manifest

// PodAt says where in the input the i-th of Pods stands, or the workload that it is made for.
func (s *Set) PodAt(i int) (file string, line int) {
	at := s.places["Pod"][i]
	return s.name(at.file), int(at.line)
}
