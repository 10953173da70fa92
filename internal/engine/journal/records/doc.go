// Package records keeps records in the files of a folder. What a record means is up to those who
// write and read it. A file begins with a line that names its format and a header in JSON. Each
// record has its length and a checksum, so that a file that ends in the middle of a record, as
// after a kill, can be read up to there. Files are bounded by size and age; the oldest are removed
// as a whole.
package records
