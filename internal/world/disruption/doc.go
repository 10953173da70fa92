// Package disruption has the rules by which pods leave their nodes on request: which pods of a node
// kubectl drain evicts, in which words it refuses the others, and what the Eviction API answers.
// They are pure rules over API objects: forecasts of a drain and the drain itself ask the same.
package disruption
