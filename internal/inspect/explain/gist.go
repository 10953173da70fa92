package explain

import (
	"strconv"
	"strings"
)

// Gist is what the explanation says but for the time and what the clock alone changes.
func (e *Explanation) Gist() string {
	words := []string{string(e.State), e.Pod.Node, e.Pod.NominatedNode, e.Message}
	if e.Eviction != nil {
		words = append(words, e.Eviction.Taint, e.Eviction.Due.String())
	}
	for i := range e.Suggestions {
		words = append(words, e.Suggestions[i].Text)
	}
	return strings.Join(words, "\n")
}

// Gist is what the explanation says but for the time.
func (e *GroupExplanation) Gist() string { return string(e.State) + "\n" + e.Summary }

// Gist is what the explanations say but for the time.
func (s *Several) Gist() string {
	words := []string{strconv.Itoa(s.Pods), strconv.Itoa(s.Pending), strconv.Itoa(s.Missing), s.Reason}
	for i := range s.Items {
		words = append(words, strings.Join(s.Items[i].Pods, ","), s.Items[i].Gist())
	}
	return strings.Join(words, "\n")
}
